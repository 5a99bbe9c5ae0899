#include <algorithm>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_set.h"
#include "moe/fused_tiles.h"
#include "ops/grouped_matmul_layout.h"
#include "routing/window_buffer.h"

namespace plait::moe {
namespace {

enum Step : int { hidden_step, activation_step, project_step };

}  // namespace

Result<ForwardTiles> ForwardTiles::create(const Mlp& mlp, const FusedForward& rows, TileRole role) {
  ForwardTiles tiles(mlp, rows, role);
  PLAIT_ASSIGN_OR_RETURN(tiles.act_, mlp.context.empty(mlp.dtype(), {rows.h.shape[0], mlp.intermediate()}));
  PLAIT_ASSIGN_OR_RETURN(
      tiles.hidden_,
      MatmulTiles::create(
          mlp.context, {.x = rows.x, .weight = mlp.gate_up, .bias = mlp.gate_up_bias, .y = gmm_layout::rows_of(rows.h), .counts = mlp.group_rows}));
  PLAIT_ASSIGN_OR_RETURN(tiles.project_, MatmulTiles::create(mlp.context, {.x = gmm_layout::rows_of(ConstTensorView(tiles.act_.view)),
                                                                           .weight = mlp.down,
                                                                           .bias = mlp.down_bias,
                                                                           .y = rows.results,
                                                                           .counts = mlp.group_rows}));
  return tiles;
}

void ForwardTiles::add_to(TileScheduler& scheduler, std::vector<BlockChain> chains, int results) {
  chains_ = std::move(chains);
  const bool shared = role_ == TileRole::shared;
  for (size_t i = 0; i < chains_.size(); ++i) {
    const BlockChain& blocks = chains_[i];
    TileChain chain = blocks.tile_chain();
    chain.add_step(shared ? Stage::shared_expert : Stage::gate_up, blocks.num_tasks(hidden_));
    chain.add_step(shared ? Stage::shared_expert : Stage::activation, blocks.num_row_tasks());
    chain.add_step(shared ? Stage::shared_expert : Stage::down, blocks.num_tasks(project_));
    chain.leads[0] = {results, project_step};
    chain.filler = shared;
    scheduler.add(std::move(chain), [this, i](const TileScheduler::TileAt& at) { run_task(i, at); });
  }
}

void ForwardTiles::run_task(size_t number, const TileScheduler::TileAt& at) const {
  const BlockChain& blocks = chains_[number];
  if (at.step == hidden_step) return blocks.run(hidden_, at.tile, at.worker, project_, blocks);
  if (at.step == project_step) return blocks.run(project_, at.tile, at.worker, hidden_, chains_[std::min(number + 1, chains_.size() - 1)]);
  blocks.run_rows(at.tile, [&](int64_t begin, int64_t end, int64_t) { activate(begin, end); });
}

/// act of some rows, each right after its h was written.
void ForwardTiles::activate(int64_t begin, int64_t end) const {
  const kernels::ElementwiseKernels& kernels = *mlp_.context.kernels().elementwise;
  for (int64_t i = begin; i < end; ++i)
    kernels.activation_forward(mlp_.activation, rows_.h.dtype, rows_.h.at(i), act_.view.at(i), act_.view.shape[1]);
}

Status run_tiles(LayerCall& call, const RoutingPlan& plan, const FusedForward& rows, const FusedSignals& signals, Gaps gaps) {
  PLAIT_ASSIGN_OR_RETURN(ForwardTiles tiles, ForwardTiles::create(routed_experts(call, plan), rows, TileRole::routed));
  TileScheduler scheduler;
  tiles.add_to(scheduler, make_block_chains(plan, tiles.max_rows(), call.context.threads()), add_results_gate(scheduler, call, signals));
  if (gaps == Gaps::filled && call.filler != nullptr) PLAIT_RETURN_IF_ERROR(call.filler->add_to(scheduler));
  return run_scheduler(call, scheduler, signals);
}

}  // namespace plait::moe
