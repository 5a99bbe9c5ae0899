#include <algorithm>

#include "base/status_macros.h"
#include "observe/verify_call.h"

namespace plait::verify {
namespace {

constexpr int64_t max_tokens = 32;  // what falls back is told by the configuration, not by the size

/// The same weights, inputs and model; only the dispatcher's name changes.
Status check_runs(VerifyCall& call, LayerRun& run, Dispatcher dispatcher, ResultCopies& baseline) {
  PLAIT_RETURN_IF_ERROR(call.step(run, dispatcher));
  std::vector<NamedResult> results = run.results(true);
  if (baseline.items().empty()) baseline = ResultCopies(results);
  std::string differing;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!compare_bits(results[i].view, baseline.items()[i].view).equal) differing += fmt::format(" {}", results[i].name);
  }
  std::string detail = differing.empty() ? "runs by configuration alone, same bits" : fmt::format("differs in{}", differing);
  return call.add("fallback", fmt::format("dispatcher: {}", name(dispatcher)), differing.empty(), std::move(detail));
}

/// What the switches of a plan leave: mc2 needs fused operators, alltoall does not, and eager needs neither them nor the grouped matmul.
Status check_switches(VerifyCall& call) {
  Case reduced = call.run_case;
  reduced.fused_ops = false;
  reduced.dispatchers = {Dispatcher::mc2};
  Status status = reduced.validate();
  bool refused = status.message().find("use_npu_fused_ops") != std::string::npos;
  PLAIT_RETURN_IF_ERROR(call.add("fallback", "without fused operators: mc2", refused, refused ? "refused" : "not refused: " + status.message()));
  for (Dispatcher dispatcher : {Dispatcher::alltoall, Dispatcher::eager}) {
    reduced.dispatchers = {dispatcher};
    reduced.grouped_expert_matmul = dispatcher != Dispatcher::eager;
    status = reduced.validate();
    std::string_view without = reduced.grouped_expert_matmul ? "without fused operators" : "without fused or grouped operators";
    PLAIT_RETURN_IF_ERROR(
        call.add("fallback", fmt::format("{}: {}", without, name(dispatcher)), status.ok(), status.ok() ? "accepted" : status.message()));
  }
  return {};
}

}  // namespace

Status verify_fallback(VerifyCall& call) {
  Case small = call.run_case;
  small.tokens = std::min(small.tokens, max_tokens);
  PLAIT_ASSIGN_OR_RETURN(CaseInputs inputs, make_inputs(call.context, small, rank_tokens(small, call.group.rank())));
  PLAIT_ASSIGN_OR_RETURN(LayerRun run, LayerRun::create(call.context, call.group, small, std::move(inputs)));
  ResultCopies baseline;
  for (Dispatcher dispatcher : {Dispatcher::mc2, Dispatcher::alltoall, Dispatcher::eager, Dispatcher::allgather, Dispatcher::automatic}) {
    PLAIT_RETURN_IF_ERROR(check_runs(call, run, dispatcher, baseline));
  }
  return check_switches(call);
}

}  // namespace plait::verify
