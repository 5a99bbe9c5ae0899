#include <optional>

#include "base/status_macros.h"
#include "moe/activation_rows.h"
#include "moe/fused_blocks.h"
#include "moe/row_sums.h"
#include "ops/grouped_matmul_layout.h"
#include "plait/grouped_matmul.h"
#include "routing/window_buffer.h"

namespace plait::moe {
namespace {

/// Everything that the tiles of one backward need. Steps of a block: (h again,) g, activation, dx.
class BackwardTiles {
 public:
  static Result<BackwardTiles> create(LayerCall& call, const RoutingPlan& plan, const FusedBackward& rows, const LayerGradients& gradients);
  Status run(const FusedSignals& signals);

 private:
  BackwardTiles(LayerCall& call, const RoutingPlan& plan, const FusedBackward& rows) : call_(call), plan_(plan), rows_(rows) {}

  int activation_step() const { return hidden_ ? 2 : 1; }
  bool wants_weight_gradients() const { return down_ || gate_up_; }
  void add_blocks(TileScheduler& scheduler, int results, const std::vector<int>& expert_gates);
  void add_weight_gradients(TileScheduler& scheduler, const std::vector<int>& expert_gates);
  void run_block_tile(const TileScheduler::TileAt& at) const;

  /// A chain of weight gradient tiles.
  struct GradientChain {
    const WeightGradientTiles* tiles;
    int64_t local_expert;
  };

  LayerCall& call_;
  const RoutingPlan& plan_;
  const FusedBackward& rows_;
  std::vector<ExpertBlock> blocks_;
  std::optional<MatmulTiles> hidden_, g_, dx_;
  std::optional<WeightGradientTiles> down_, gate_up_;
  std::optional<ActivationRows> activation_;
  Buffer scratch_;
  std::vector<GradientChain> gradient_chains_;
};

Result<BackwardTiles> BackwardTiles::create(LayerCall& call, const RoutingPlan& plan, const FusedBackward& rows, const LayerGradients& gradients) {
  const Context& context = call.context;
  const LayerWeights& w = call.weights;
  const std::span<const int64_t> counts = plan.expert_rows();
  const kernels::Rows h = gmm_layout::rows_of(ConstTensorView(rows.h)), g = gmm_layout::rows_of(ConstTensorView(rows.g)),
                      dh = gmm_layout::rows_of(ConstTensorView(rows.dh));
  BackwardTiles tiles(call, plan, rows);
  if (call.config.recompute) {
    PLAIT_ASSIGN_OR_RETURN(tiles.hidden_, MatmulTiles::create(context, {rows.x, w.gate_up, w.gate_up_bias, gmm_layout::rows_of(rows.h), counts}));
  }
  PLAIT_ASSIGN_OR_RETURN(tiles.g_, MatmulTiles::create(context, {rows.dy, w.down.transposed(1, 2), {}, gmm_layout::rows_of(rows.g), counts}));
  PLAIT_ASSIGN_OR_RETURN(tiles.dx_, MatmulTiles::create(context, {dh, w.gate_up.transposed(1, 2), {}, rows.dx, counts}));
  if (gradients.down.defined()) {
    PLAIT_ASSIGN_OR_RETURN(tiles.down_,
                           WeightGradientTiles::create(context, {g, rows.dy, call.config.dtype, gradients.down, gradients.accumulate, counts}));
  }
  if (gradients.gate_up.defined()) {
    PLAIT_ASSIGN_OR_RETURN(tiles.gate_up_,
                           WeightGradientTiles::create(context, {rows.x, dh, call.config.dtype, gradients.gate_up, gradients.accumulate, counts}));
  }
  tiles.activation_.emplace(ActivationRows{.context = context,
                                           .activation = call.config.activation,
                                           .dtype = call.config.dtype,
                                           .intermediate = call.config.intermediate,
                                           .down_bias = w.down_bias,
                                           .h = h,
                                           .g = g,
                                           .dy = rows.dy,
                                           .weights = rows.weights,
                                           .dweights = rows.dweights,
                                           .wants_dweights = true,
                                           .dh = gmm_layout::rows_of(rows.dh),
                                           .act_w = gmm_layout::rows_of(rows.g)});
  PLAIT_ASSIGN_OR_RETURN(tiles.scratch_, context.scratch(context.threads() * tiles.activation_->scratch_bytes()));
  tiles.blocks_ = make_expert_blocks(plan, tiles.g_->max_rows());
  return tiles;
}

void BackwardTiles::add_blocks(TileScheduler& scheduler, int results, const std::vector<int>& expert_gates) {
  for (const ExpertBlock& block : blocks_) {
    TileChain chain = chain_of(plan_, block);
    if (hidden_) chain.add_step(Stage::gate_up, hidden_->num_tasks());
    chain.add_step(Stage::backward_down, g_->num_tasks());
    chain.add_step(Stage::backward_activation, RowPieces(block, call_.context.threads()).count());
    chain.add_step(Stage::backward_gate_up, dx_->num_tasks());
    chain.leads = {{{results, activation_step() + 1}, {expert_gates[static_cast<size_t>(block.local_expert)], activation_step()}}};
    scheduler.add(std::move(chain));
  }
}

void BackwardTiles::add_weight_gradients(TileScheduler& scheduler, const std::vector<int>& expert_gates) {
  for (int64_t j = 0; j < plan_.placement().experts_per_rank(); ++j) {
    for (const std::optional<WeightGradientTiles>* tiles : {&down_, &gate_up_}) {
      if (!tiles->has_value()) continue;
      TileChain chain;
      chain.add_step(Stage::weight_gradient, (*tiles)->num_tasks(j));
      chain.behind = expert_gates[static_cast<size_t>(j)];
      chain.filler = true;
      chain.expert = static_cast<int32_t>(plan_.placement().global(plan_.rank(), j));
      chain.row_end = plan_.expert_rows()[static_cast<size_t>(j)];
      scheduler.add(std::move(chain));
      gradient_chains_.push_back({&**tiles, j});
    }
  }
}

void BackwardTiles::run_block_tile(const TileScheduler::TileAt& at) const {
  const auto number = static_cast<size_t>(at.chain);
  const ExpertBlock& block = blocks_[number];
  const ExpertBlock& next = blocks_[std::min(number + 1, blocks_.size() - 1)];
  const int step = at.step - (activation_step() - 1);  // -1: h again, 0: g, 1: activation, 2: dx
  if (step == -1) return run_before(*hidden_, block, at, *g_, block);
  if (step == 0) return run_before(*g_, block, at, *dx_, block);
  if (step == 2) return run_before(*dx_, block, at, hidden_ ? *hidden_ : *g_, next);
  const RowPieces pieces(block, call_.context.threads());
  activation_->run(pieces.begin(at.tile), pieces.end(at.tile), block.local_expert, scratch_.get() + at.worker * activation_->scratch_bytes());
}

Status BackwardTiles::run(const FusedSignals& signals) {
  TileScheduler scheduler;
  const int results = scheduler.add_gate([&] { return signals.results == 0 ? Status() : call_.group.signal(results_there, signals.results); });
  std::vector<int> expert_gates;
  for (int64_t j = 0; j < plan_.placement().experts_per_rank(); ++j) expert_gates.push_back(scheduler.add_gate());
  add_blocks(scheduler, results, expert_gates);
  add_weight_gradients(scheduler, expert_gates);
  return run_scheduler(call_, scheduler, signals, [&](const TileScheduler::TileAt& at) {
    const auto chain = static_cast<size_t>(at.chain);
    if (chain < blocks_.size()) return run_block_tile(at);
    const GradientChain& gradient = gradient_chains_[chain - blocks_.size()];
    gradient.tiles->run(gradient.local_expert, at.tile, at.worker);
  });
}

/// Sums over rows that are all there: small beside the matmuls.
Status bias_gradients(LayerCall& call, const RoutingPlan& plan, const FusedBackward& rows, const LayerGradients& gradients) {
  StageScope scope(call, Stage::weight_gradient);
  if (gradients.down_bias.defined()) {
    PLAIT_RETURN_IF_ERROR(scaled_row_sums(call.context, rows.dy, call.config.dtype, rows.weights, plan.expert_rows(), AbsentRows::skip,
                                          gradients.down_bias, gradients.accumulate));
  }
  if (!gradients.gate_up_bias.defined()) return {};
  return grouped_bias_gradient(call.context, rows.dh, plan.expert_rows(), gradients.gate_up_bias, gradients.accumulate);
}

}  // namespace

Status run_tiles(LayerCall& call, const RoutingPlan& plan, const FusedBackward& rows, const LayerGradients& gradients, const FusedSignals& signals) {
  PLAIT_ASSIGN_OR_RETURN(BackwardTiles tiles, BackwardTiles::create(call, plan, rows, gradients));
  PLAIT_RETURN_IF_ERROR(tiles.run(signals));
  return bias_gradients(call, plan, rows, gradients);
}

}  // namespace plait::moe
