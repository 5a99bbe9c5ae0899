#pragma once
/// What the sections of `plait verify` share on one rank.

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "observe/measure.h"
#include "observe/verify.h"

namespace plait::verify {

struct VerifyCall {
  const VerifyOptions& options;
  const Case& run_case;
  const Context& context;
  Group& group;
  std::vector<Dispatcher> dispatchers;  ///< baseline_first(): the first is what the others are compared with
  std::vector<CheckLine> lines;

  /// Collective: the line holds where it holds on all ranks; `detail` is that of the first rank on which it does not, else rank 0's.
  /// A line that does not hold gets the command that makes its section anew.
  Status add(std::string_view section, std::string name, bool ok, std::string detail);
  /// Forward and backward of a run, after the options' hook.
  Status step(LayerRun& run, Dispatcher dispatcher) const;
};

/// The dispatchers of this build, alltoall first.
std::vector<Dispatcher> baseline_first();
/// `plait verify` of this case and section alone.
std::string reproducer(const Case& run_case, std::string_view section);

/// Makes the line of a result that is compared with the baseline's: on a difference the element, its token or expert, both values, and the
/// worst row of up to three experts. `first_token` is the global index of the run's token 0. Collective.
Status add_comparison(VerifyCall& call, std::string_view section, std::string name, const LayerRun& run, int64_t first_token,
                      const NamedResult& result, const NamedResult& baseline);

/// True where every element is finite.
bool all_finite(const ConstTensorView& view);

// The sections. All are collective and add their lines.
Status verify_shape(VerifyCall& call);
Status verify_numeric(VerifyCall& call);
Status verify_float64(VerifyCall& call);
Status verify_backward(VerifyCall& call);
Status verify_routing(VerifyCall& call);
Status verify_precision(VerifyCall& call);
Status verify_performance(VerifyCall& call);
Status verify_fallback(VerifyCall& call);

}  // namespace plait::verify
