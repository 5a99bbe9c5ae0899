#pragma once
/// AdamW (Loshchilov and Hutter, 2019) in float32 with float32 master weights, and the figures of a gradient.

#include <cstdint>
#include <vector>

#include "plait/context.h"
#include "plait/group.h"
#include "plait/status.h"
#include "train/parameters.h"

namespace plait::train {

struct AdamWOptions {
  float learning_rate = 1e-3F;
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float epsilon = 1e-8F;
  float weight_decay = 0.01F;  ///< decoupled, on every parameter
};

/// Moments and masters of one rank's parameters. Every operation is elementwise float32, so that thread counts and tiers change no bit.
class AdamW {
 public:
  AdamW() = default;
  /// Masters start from the set's values. Error: resource_exhausted.
  static Result<AdamW> create(const Context& context, const ParameterSet& set, const AdamWOptions& options);

  /// One update of the set's values from its gradients, each first multiplied by `gradient_scale`.
  void step(const Context& context, const ParameterSet& set, float gradient_scale);

 private:
  struct State {
    Tensor master, m, v;  ///< flat float32
  };
  AdamWOptions options_;
  std::vector<State> states_;                     ///< one per trained parameter, in the set's order
  double beta1_power_ = 1.0, beta2_power_ = 1.0;  ///< beta^steps
};

struct GradientReport {
  double norm = 0;        ///< over all parameters: expert shards of all ranks, replicated ones counted once
  int64_t nonfinite = 0;  ///< elements that are infinite or NaN, counted likewise
};

/// Figures of the gradients times `gradient_scale`. Sums are float64 in a fixed order: blocks of a parameter ascending, experts of all
/// ranks ascending, so that the norm depends on the gradients' bits alone. Collective; the replicated gradients must be reduced already.
Result<GradientReport> gradient_report(const Context& context, Group& group, const ParameterSet& set, float gradient_scale);

}  // namespace plait::train
