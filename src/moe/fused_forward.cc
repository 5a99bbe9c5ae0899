#include <algorithm>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_set.h"
#include "moe/fused_blocks.h"
#include "ops/grouped_matmul_layout.h"
#include "routing/window_buffer.h"

namespace plait::moe {
namespace {

enum Step : int { gate_up_step, activation_step, down_step };

/// act of some rows, each right after its h was written.
void activate(const LayerCall& call, const TensorView& h, const TensorView& act, int64_t begin, int64_t end) {
  const kernels::ElementwiseKernels& kernels = *call.context.kernels().elementwise;
  for (int64_t i = begin; i < end; ++i) kernels.activation_forward(call.config.activation, h.dtype, h.at(i), act.at(i), act.shape[1]);
}

}  // namespace

Status run_tiles(LayerCall& call, const RoutingPlan& plan, const FusedForward& rows, const FusedSignals& signals) {
  const LayerWeights& w = call.weights;
  const Context& context = call.context;
  PLAIT_ASSIGN_OR_RETURN(const Tensor act, context.empty(call.config.dtype, {plan.num_recv_rows(), call.config.intermediate}));
  PLAIT_ASSIGN_OR_RETURN(
      const MatmulTiles gate_up,
      MatmulTiles::create(
          context, {.x = rows.x, .weight = w.gate_up, .bias = w.gate_up_bias, .y = gmm_layout::rows_of(rows.h), .counts = plan.expert_rows()}));
  PLAIT_ASSIGN_OR_RETURN(const MatmulTiles down, MatmulTiles::create(context, {.x = gmm_layout::rows_of(ConstTensorView(act.view)),
                                                                               .weight = w.down,
                                                                               .bias = w.down_bias,
                                                                               .y = rows.results,
                                                                               .counts = plan.expert_rows()}));
  const std::vector<BlockChain> chains = make_block_chains(plan, gate_up.max_rows(), context.threads());
  TileScheduler scheduler;
  const int results = scheduler.add_gate([&] { return signals.results == 0 ? Status() : call.group.signal(results_there, signals.results); });
  for (const BlockChain& blocks : chains) {
    TileChain chain = blocks.tile_chain(plan);
    chain.add_step(Stage::gate_up, blocks.num_tasks(gate_up));
    chain.add_step(Stage::activation, blocks.num_row_tasks());
    chain.add_step(Stage::down, blocks.num_tasks(down));
    chain.leads[0] = {results, down_step};
    scheduler.add(std::move(chain));
  }
  return run_scheduler(call, scheduler, signals, [&](const TileScheduler::TileAt& at) {
    const auto number = static_cast<size_t>(at.chain);
    const BlockChain& blocks = chains[number];
    if (at.step == gate_up_step) return blocks.run(gate_up, at.tile, at.worker, down, blocks);
    if (at.step == down_step) return blocks.run(down, at.tile, at.worker, gate_up, chains[std::min(number + 1, chains.size() - 1)]);
    blocks.run_rows(at.tile, [&](int64_t begin, int64_t end, int64_t) { activate(call, rows.h, act, begin, end); });
  });
}

}  // namespace plait::moe
