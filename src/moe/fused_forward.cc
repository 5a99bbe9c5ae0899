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
  const std::vector<ExpertBlock> blocks = make_expert_blocks(plan, gate_up.max_rows());
  TileScheduler scheduler;
  const int results = scheduler.add_gate([&] { return signals.results == 0 ? Status() : call.group.signal(results_there, signals.results); });
  for (const ExpertBlock& block : blocks) {
    TileChain chain = chain_of(plan, block);
    chain.add_step(Stage::gate_up, gate_up.num_tasks());
    chain.add_step(Stage::activation, RowPieces(block, context.threads()).count());
    chain.add_step(Stage::down, down.num_tasks());
    chain.leads[0] = {results, down_step};
    scheduler.add(std::move(chain));
  }
  return run_scheduler(call, scheduler, signals, [&](const TileScheduler::TileAt& at) {
    const auto number = static_cast<size_t>(at.chain);
    const ExpertBlock& block = blocks[number];
    if (at.step == gate_up_step) return run_before(gate_up, block, at, down, block);
    if (at.step == down_step) return run_before(down, block, at, gate_up, blocks[std::min(number + 1, blocks.size() - 1)]);
    const RowPieces pieces(block, context.threads());
    activate(call, rows.h, act, pieces.begin(at.tile), pieces.end(at.tile));
  });
}

}  // namespace plait::moe
