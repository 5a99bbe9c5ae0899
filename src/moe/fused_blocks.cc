#include "moe/fused_blocks.h"

#include "moe/expert_path.h"
#include "routing/state_dump.h"

namespace plait::moe {

Status run_scheduler(LayerCall& call, TileScheduler& scheduler, const FusedSignals& signals, const TileScheduler::RunTile& run_tile) {
  call.stage = signals.rows.stage;
  Status status = scheduler.run(call.context, call.group, signals.rows, run_tile);
  if (!status.ok()) call.unfinished = scheduler.describe_unfinished();
  return status;
}

Status await_results(LayerCall& call, const RoutingPlan& plan, Stage stage) {
  StageScope scope(call, stage);
  const Status status = wait_for_results(call.group, stage);
  if (status.ok()) return status;
  call.unfinished = describe_missing_results(call.group);
  return without_results(plan, status);
}

}  // namespace plait::moe
