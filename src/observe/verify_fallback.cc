#include <algorithm>

#include "base/status_macros.h"
#include "observe/verify_call.h"

namespace plait::verify {

Status verify_fallback(VerifyCall& call) {
  Case small = call.run_case;
  small.tokens = std::min<int64_t>(small.tokens, 32);
  PLAIT_ASSIGN_OR_RETURN(CaseInputs inputs, make_inputs(call.context, small, rank_tokens(small, call.group.rank())));
  PLAIT_ASSIGN_OR_RETURN(LayerRun run, LayerRun::create(call.context, call.group, small, std::move(inputs)));
  ResultCopies baseline;
  for (Dispatcher dispatcher : {Dispatcher::eager, Dispatcher::alltoall, Dispatcher::allgather, Dispatcher::mc2, Dispatcher::automatic}) {
    std::string line = fmt::format("dispatcher: {}", name(dispatcher));
    if (std::find(call.dispatchers.begin(), call.dispatchers.end(), dispatcher) == call.dispatchers.end()) {
      LayerConfig config = small.layer;
      config.dispatcher = dispatcher;
      Status refusal = config.validate(call.group.size());
      bool named = !refusal.ok() && refusal.message().find(name(call.dispatchers[0])) != std::string::npos;
      PLAIT_RETURN_IF_ERROR(
          call.add("fallback", std::move(line), named, named ? "refused: " + refusal.message() : "accepted, but not in this build"));
      continue;
    }
    PLAIT_RETURN_IF_ERROR(call.step(run, dispatcher));
    std::vector<NamedResult> results = run.results(true);
    if (baseline.items().empty()) baseline = ResultCopies(results);
    bool equal = true;
    for (size_t i = 0; i < results.size(); ++i) equal = equal && compare_bits(results[i].view, baseline.items()[i].view).equal;
    PLAIT_RETURN_IF_ERROR(call.add("fallback", std::move(line), equal, equal ? "runs by configuration alone, same bits" : "differs"));
  }
  small.fused_ops = false;
  small.dispatchers = {Dispatcher::mc2};
  Status refusal = small.validate();
  return call.add("fallback", "dispatcher: mc2 without fused operators", !refusal.ok(), refusal.ok() ? "accepted" : "refused");
}

}  // namespace plait::verify
