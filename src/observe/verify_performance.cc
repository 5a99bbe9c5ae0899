#include <algorithm>

#include "base/status_macros.h"
#include "observe/measure_gather.h"
#include "observe/run_phases.h"
#include "observe/verify_call.h"

namespace plait::verify {
namespace {

constexpr int num_rounds = 3;

}  // namespace

/// Step times tell, they do not judge: a line here never fails.
Status verify_performance(VerifyCall& call) {
  PLAIT_ASSIGN_OR_RETURN(CaseInputs inputs, make_inputs(call.context, call.run_case, rank_tokens(call.run_case, call.group.rank())));
  PLAIT_ASSIGN_OR_RETURN(LayerRun run, LayerRun::create(call.context, call.group, call.run_case, std::move(inputs)));
  std::vector<std::vector<double>> slowest(call.dispatchers.size());
  for (int round = 0; round <= num_rounds; ++round) {
    for (size_t d = 0; d < call.dispatchers.size(); ++d) {
      PLAIT_ASSIGN_OR_RETURN(StepSample sample, measure_step(run, call.dispatchers[d], true));
      PLAIT_ASSIGN_OR_RETURN(std::vector<double> all, gather_one(call.group, "verification", sample.step));
      if (round > 0) slowest[d].push_back(*std::max_element(all.begin(), all.end()));  // the first one warms up
    }
  }
  double baseline_ms = timing(slowest[0]).median;
  for (size_t d = 0; d < call.dispatchers.size(); ++d) {
    double ms = timing(slowest[d]).median;
    std::string detail = fmt::format("{:.3f} ms", ms);
    if (d > 0 && baseline_ms > 0) detail += fmt::format(", {:.3f} times that of {}", ms / baseline_ms, name(call.dispatchers[0]));
    PLAIT_RETURN_IF_ERROR(call.add("performance", fmt::format("{}: median step of {}", name(call.dispatchers[d]), num_rounds), true, detail));
  }
  return {};
}

}  // namespace plait::verify
