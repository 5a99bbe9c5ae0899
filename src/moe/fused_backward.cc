#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

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
  BackwardTiles(LayerCall& call, const RoutingPlan& plan) : call_(call), plan_(plan) {}

  int activation_step() const { return hidden_ ? 2 : 1; }
  void add_blocks(TileScheduler& scheduler, int results, std::vector<int>& expert_gates);
  void add_weight_gradients(TileScheduler& scheduler, const std::vector<int>& expert_gates);
  void add_gradient_chain(TileScheduler& scheduler, std::span<const int64_t> experts, int gate);
  void run_block_task(const TileScheduler::TileAt& at) const;
  void run_gradient_task(const TileScheduler::TileAt& at) const;

  struct GradientTask {
    const WeightGradientTiles* tiles;
    int64_t local_expert, task;
  };

  LayerCall& call_;
  const RoutingPlan& plan_;
  std::vector<BlockChain> chains_;
  std::optional<MatmulTiles> hidden_, g_, dx_;
  std::optional<WeightGradientTiles> down_, gate_up_;
  std::optional<ActivationRows> activation_;
  Buffer scratch_;
  std::vector<GradientTask> gradient_tasks_;
  std::vector<size_t> gradient_begins_{0};  ///< of each gradient chain's tasks, and their end
};

Result<BackwardTiles> BackwardTiles::create(LayerCall& call, const RoutingPlan& plan, const FusedBackward& rows, const LayerGradients& gradients) {
  const Context& context = call.context;
  const LayerWeights& w = call.weights;
  const std::span<const int64_t> counts = plan.expert_rows();
  const kernels::Rows h = gmm_layout::rows_of(ConstTensorView(rows.h)), g = gmm_layout::rows_of(ConstTensorView(rows.g)),
                      dh = gmm_layout::rows_of(ConstTensorView(rows.dh));
  BackwardTiles tiles(call, plan);
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
  tiles.chains_ = make_block_chains(plan, tiles.g_->max_rows(), context.threads());
  return tiles;
}

/// Weight gradients of an expert wait for all chains with its rows.
void BackwardTiles::add_blocks(TileScheduler& scheduler, int results, std::vector<int>& expert_gates) {
  for (const BlockChain& blocks : chains_) {
    int gate = expert_gates[static_cast<size_t>(blocks.blocks.front().local_expert)];
    if (gate == TileChain::no_gate) gate = scheduler.add_gate();
    for (const ExpertBlock& block : blocks.blocks) expert_gates[static_cast<size_t>(block.local_expert)] = gate;
    TileChain chain = blocks.tile_chain(plan_);
    if (hidden_) chain.add_step(Stage::gate_up, blocks.num_tasks(*hidden_));
    chain.add_step(Stage::backward_down, blocks.num_tasks(*g_));
    chain.add_step(Stage::backward_activation, blocks.num_row_tasks());
    chain.add_step(Stage::backward_gate_up, blocks.num_tasks(*dx_));
    chain.leads = {{{results, activation_step() + 1}, {gate, activation_step()}}};
    scheduler.add(std::move(chain));
  }
}

/// One chain per gate: experts that wait for the same one. Those without rows wait for none.
void BackwardTiles::add_weight_gradients(TileScheduler& scheduler, const std::vector<int>& expert_gates) {
  std::map<int, std::vector<int64_t>> experts;
  for (size_t j = 0; j < expert_gates.size(); ++j) experts[expert_gates[j]].push_back(static_cast<int64_t>(j));
  for (const auto& [gate, group] : experts) add_gradient_chain(scheduler, group, gate);
}

void BackwardTiles::add_gradient_chain(TileScheduler& scheduler, std::span<const int64_t> experts, int gate) {
  for (const std::optional<WeightGradientTiles>* tiles : {&down_, &gate_up_}) {
    for (const int64_t j : experts) {
      const int64_t num_tasks = tiles->has_value() ? (*tiles)->num_tasks(j) : 0;
      for (int64_t task = 0; task < num_tasks; ++task) gradient_tasks_.push_back({&**tiles, j, task});
    }
  }
  const size_t num_tasks = gradient_tasks_.size() - gradient_begins_.back();
  TileChain chain;
  chain.add_step(Stage::weight_gradient, static_cast<int64_t>(call_.context.threads() == 1 ? std::min<size_t>(num_tasks, 1) : num_tasks));
  chain.behind = gate;
  chain.filler = true;
  chain.expert = static_cast<int32_t>(plan_.placement().global(plan_.rank(), experts.front()));
  chain.row_end = plan_.expert_rows()[static_cast<size_t>(experts.front())];
  scheduler.add(std::move(chain));
  gradient_begins_.push_back(gradient_tasks_.size());
}

void BackwardTiles::run_block_task(const TileScheduler::TileAt& at) const {
  const auto number = static_cast<size_t>(at.chain);
  const BlockChain& blocks = chains_[number];
  const BlockChain& next = chains_[std::min(number + 1, chains_.size() - 1)];
  const int step = at.step - (activation_step() - 1);  // -1: h again, 0: g, 1: activation, 2: dx
  if (step == -1) return blocks.run(*hidden_, at.tile, at.worker, *g_, blocks);
  if (step == 0) return blocks.run(*g_, at.tile, at.worker, *dx_, blocks);
  if (step == 2) return blocks.run(*dx_, at.tile, at.worker, hidden_ ? *hidden_ : *g_, next);
  std::byte* scratch = scratch_.get() + at.worker * activation_->scratch_bytes();
  blocks.run_rows(at.tile, [&](int64_t begin, int64_t end, int64_t expert) { activation_->run(begin, end, expert, scratch); });
}

void BackwardTiles::run_gradient_task(const TileScheduler::TileAt& at) const {
  const size_t chain = static_cast<size_t>(at.chain) - chains_.size();
  const bool single = call_.context.threads() == 1;
  const size_t begin = gradient_begins_[chain] + static_cast<size_t>(at.tile), end = single ? gradient_begins_[chain + 1] : begin + 1;
  for (size_t i = begin; i < end; ++i) {
    const GradientTask& task = gradient_tasks_[i];
    task.tiles->run(task.local_expert, task.task, at.worker);
  }
}

Status BackwardTiles::run(const FusedSignals& signals) {
  TileScheduler scheduler;
  const int results = scheduler.add_gate([&] { return signals.results == 0 ? Status() : call_.group.signal(results_there, signals.results); });
  std::vector<int> expert_gates(static_cast<size_t>(plan_.placement().experts_per_rank()), TileChain::no_gate);
  add_blocks(scheduler, results, expert_gates);
  add_weight_gradients(scheduler, expert_gates);
  return run_scheduler(call_, scheduler, signals, [&](const TileScheduler::TileAt& at) {
    static_cast<size_t>(at.chain) < chains_.size() ? run_block_task(at) : run_gradient_task(at);
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
