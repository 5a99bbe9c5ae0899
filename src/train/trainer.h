#pragma once
/// The small training of `plait run --steps`: byte embedding, one MoE layer with a residual, a linear head, next-byte cross-entropy.
/// docs/measuring.md, "Training", defines model, loss and order of every sum.

#include <cstdint>
#include <span>
#include <vector>

#include "plait/context.h"
#include "plait/group.h"
#include "plait/layer.h"
#include "plait/status.h"
#include "train/adamw.h"
#include "train/parameters.h"
#include "train/text.h"

namespace plait::train {

struct TrainOptions {
  LayerConfig layer;
  int64_t tokens = 0;  ///< per rank; must be equal on all ranks
  uint64_t seed = 0;
  Text text;
  AdamWOptions optimizer;
};

struct TrainStep {
  double loss = 0;           ///< what is minimised: cross_entropy plus the routers' losses times their coefficients
  double cross_entropy = 0;  ///< mean over all ranks' tokens, nats
  double grad_norm = 0;
  int64_t nonfinite = 0;                   ///< gradient elements; where it is not 0 the step leaves the parameters as they are
  std::vector<int64_t> tokens_per_expert;  ///< (E), over all ranks
};

/// One rank's model. All functions are collective; after an error the group is aborted by whoever found it or by the caller.
class Trainer {
 public:
  /// `context` and `group` must outlive the trainer.
  static Result<Trainer> create(const Context& context, Group& group, const TrainOptions& options);

  /// Forward, backward, reduction and update on the next stretch of the text.
  Result<TrainStep> step();
  /// The same without the update: gradients are left in parameters(), those of the sum over tokens (times 1/N gives the mean).
  Result<TrainStep> evaluate();

  const ParameterSet& parameters() const { return parameters_; }

 private:
  struct Activations;
  Trainer(const Context& context, Group& group, const TrainOptions& options) : context_(&context), group_(&group), options_(options) {}
  int64_t num_global_tokens() const { return options_.tokens * group_->size(); }
  float gradient_scale() const;
  void take_batch();
  Result<Activations> forward();
  Status backward(const Activations& activations);
  void add_embedding_gradient(const ConstTensorView& dz, const ConstTensorView& dx) const;
  Status collect_loss(const Activations& activations, TrainStep& report) const;

  const Context* context_;
  Group* group_;
  TrainOptions options_;
  ParameterSet parameters_;
  AdamW optimizer_;
  int64_t num_steps_ = 0;
  std::vector<uint8_t> inputs_, targets_;  ///< (T) bytes of the current stretch
};

}  // namespace plait::train
