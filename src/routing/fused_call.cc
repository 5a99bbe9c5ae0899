#include "routing/fused_call.h"

#include <utility>

#include "base/status_macros.h"
#include "routing/state_dump.h"
#include "routing/window_buffer.h"

namespace plait {

Status stop_group(Group& group, std::string_view operation, Stage stage, std::string_view unfinished, Status status) {
  if (status.rank() < 0) status = Status(std::move(status).at_rank(group.rank()));
  if (status.stage().empty()) status = Status(std::move(status).in_stage(name(stage)));
  group.abort(status);
  dump_state(group, operation, status, unfinished);
  return status;
}

Result<FusedSignals> tell_rows_there(Group& group, Stage stage) {
  const FusedSignals signals{{rows_there, next_value(group, rows_there), stage}, next_value(group, results_there)};
  PLAIT_RETURN_IF_ERROR(group.signal(rows_there, signals.rows.value));
  return signals;
}

Status wait_for_results(Group& group, const RoutingPlan& plan, Stage stage, std::string& unfinished) {
  const uint64_t value = group.signal_value(group.rank(), results_there);
  for (int i = 1; i < group.size(); ++i) {
    const int peer = (group.rank() + i) % group.size();
    const Status status = group.wait(peer, results_there, value, name(stage));
    if (status.ok()) continue;
    unfinished = describe_missing_results(group);
    return without_results(plan, status);
  }
  return {};
}

CrossingRows crossing_rows(const RoutingPlan& plan) {
  int64_t own = 0;
  for_each_rank_block(plan, [&](const RankBlock& block) { own += block.source == plan.rank() ? block.num_rows : 0; });
  return {plan.num_send_rows() - own, plan.num_recv_rows() - own};
}

void count_crossing_rows(Recorder& recorder, const RoutingPlan& plan, int64_t bytes_out, int64_t bytes_home) {
  const auto [leaving, coming] = crossing_rows(plan);
  const int64_t out = bytes_out > 0 ? 1 : 0, home = bytes_home > 0 ? 1 : 0;
  recorder.add(Counter::rows_sent, leaving * out + coming * home);
  recorder.add(Counter::rows_received, coming * out + leaving * home);
  recorder.add(Counter::bytes_sent, leaving * bytes_out + coming * bytes_home);
  recorder.add(Counter::bytes_received, coming * bytes_out + leaving * bytes_home);
}

TileChain chain_of(const RoutingPlan& plan, const ExpertBlock& block) {
  TileChain chain;
  chain.sources = block.sources;
  chain.expert = static_cast<int32_t>(plan.placement().global(plan.rank(), block.local_expert));
  chain.row_begin = block.row_begin;
  chain.row_end = block.row_end;
  return chain;
}

}  // namespace plait
