#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "moe/fused_tiles.h"
#include "moe/row_sums.h"
#include "ops/grouped_matmul_layout.h"
#include "plait/grouped_matmul.h"

namespace plait::moe {

Result<BackwardTiles> BackwardTiles::create(const Mlp& mlp, const FusedBackward& rows, const MlpGradients& gradients, Options options) {
  const Context& context = mlp.context;
  const std::span<const int64_t> counts = mlp.group_rows;
  const kernels::Rows h = gmm_layout::rows_of(ConstTensorView(rows.h)), g = gmm_layout::rows_of(ConstTensorView(rows.g)),
                      dh = gmm_layout::rows_of(ConstTensorView(rows.dh));
  BackwardTiles tiles(mlp, std::move(options));
  if (tiles.options_.hidden_again) {
    tiles.steps_.push_back(Step::hidden);
    PLAIT_ASSIGN_OR_RETURN(tiles.hidden_, MatmulTiles::create(context, {rows.x, mlp.gate_up, mlp.gate_up_bias, gmm_layout::rows_of(rows.h), counts}));
  } else if (tiles.options_.before) {
    tiles.steps_.push_back(Step::before);
  }
  tiles.steps_.insert(tiles.steps_.end(), {Step::g, Step::activation, Step::dx});
  PLAIT_ASSIGN_OR_RETURN(tiles.g_, MatmulTiles::create(context, {rows.dy, mlp.down.transposed(1, 2), {}, gmm_layout::rows_of(rows.g), counts}));
  PLAIT_ASSIGN_OR_RETURN(tiles.dx_, MatmulTiles::create(context, {dh, mlp.gate_up.transposed(1, 2), {}, rows.dx, counts}));
  if (gradients.down.defined()) {
    PLAIT_ASSIGN_OR_RETURN(tiles.down_,
                           WeightGradientTiles::create(context, {g, rows.dy, mlp.dtype(), gradients.down, gradients.accumulate, counts}));
  }
  if (gradients.gate_up.defined()) {
    PLAIT_ASSIGN_OR_RETURN(tiles.gate_up_,
                           WeightGradientTiles::create(context, {rows.x, dh, mlp.dtype(), gradients.gate_up, gradients.accumulate, counts}));
  }
  tiles.activation_.emplace(ActivationRows{.context = context,
                                           .activation = mlp.activation,
                                           .dtype = mlp.dtype(),
                                           .intermediate = mlp.intermediate(),
                                           .down_bias = mlp.down_bias,
                                           .h = h,
                                           .g = g,
                                           .dy = rows.dy,
                                           .weights = rows.weights,
                                           .dweights = rows.dweights,
                                           .wants_dweights = rows.weights != nullptr,
                                           .dh = gmm_layout::rows_of(rows.dh),
                                           .act_w = gmm_layout::rows_of(rows.g)});
  PLAIT_ASSIGN_OR_RETURN(tiles.scratch_, context.scratch(context.threads() * tiles.activation_->scratch_bytes()));
  return tiles;
}

/// Weight gradients of a group wait for all chains with its rows: one gate for the groups that share a chain, no_gate for those without rows.
std::vector<int> BackwardTiles::gates_of_groups(TileScheduler& scheduler) const {
  std::vector<int> gates(mlp_.group_rows.size(), TileChain::no_gate);
  for (const BlockChain& blocks : chains_) {
    int gate = gates[static_cast<size_t>(blocks.blocks.front().local_expert)];
    if (gate == TileChain::no_gate) gate = scheduler.add_gate();
    for (const ExpertBlock& block : blocks.blocks) gates[static_cast<size_t>(block.local_expert)] = gate;
  }
  return gates;
}

void BackwardTiles::prepare_early(TileScheduler& scheduler, const std::vector<int>& gates) {
  if (options_.early_bytes == 0 || !(down_ || gate_up_)) return;
  std::vector<const WeightGradientTiles*> tiles;
  for (const std::optional<WeightGradientTiles>* wanted : {&down_, &gate_up_}) {
    if (wanted->has_value()) tiles.push_back(&**wanted);
  }
  early_ = std::make_unique<EarlyGradients>(mlp_.context, std::move(tiles), options_.early_bytes);
  std::vector<EarlyGradients::BlockEnd> ends;
  for (const BlockChain& blocks : chains_) {
    for (const ExpertBlock& block : blocks.blocks) ends.push_back({block.local_expert, block.row_end});
  }
  early_->add_gates(scheduler, std::move(ends), gates);
}

TileChain BackwardTiles::block_chain(const BlockChain& blocks) const {
  TileChain chain = blocks.tile_chain();
  for (const Step step : steps_) {
    switch (step) {
      case Step::hidden:
        chain.add_step(stage(Stage::gate_up), blocks.num_tasks(*hidden_));
        break;
      case Step::before:
        chain.add_step(stage(Stage::other), blocks.num_row_tasks());
        break;
      case Step::g:
        chain.add_step(stage(Stage::backward_down), blocks.num_tasks(*g_));
        break;
      case Step::activation:
        chain.add_step(stage(Stage::backward_activation), blocks.num_row_tasks());
        break;
      case Step::dx:
        chain.add_step(stage(Stage::backward_gate_up), blocks.num_tasks(*dx_));
        break;
    }
  }
  chain.filler = options_.role == TileRole::shared;
  return chain;
}

void BackwardTiles::add_to(TileScheduler& scheduler, std::vector<BlockChain> chains, int results, int behind, int64_t first_expert) {
  chains_ = std::move(chains);
  const std::vector<int> gates = gates_of_groups(scheduler);
  prepare_early(scheduler, gates);
  const int dx_step = static_cast<int>(steps_.size()) - 1;
  for (size_t i = 0; i < chains_.size(); ++i) {
    const ExpertBlock& block = chains_[i].blocks.front();
    TileChain chain = block_chain(chains_[i]);
    chain.behind = behind;
    chain.leads[0] = {results, dx_step};
    chain.leads[1] = {gates[static_cast<size_t>(block.local_expert)], dx_step - 1};
    if (early_) chain.leads[2] = {early_->gate_of({block.local_expert, block.row_end}), dx_step - 1};
    scheduler.add(std::move(chain), [this, i](const TileScheduler::TileAt& at) { run_task(i, at); });
  }
  add_gradients(scheduler, gates, first_expert);
  if (early_) early_->add_chains(scheduler, first_expert);
}

/// One chain per gate: groups that wait for the same one. Those without rows wait for none.
void BackwardTiles::add_gradients(TileScheduler& scheduler, const std::vector<int>& gates, int64_t first_expert) {
  std::map<int, std::vector<int64_t>> groups;
  for (size_t j = 0; j < gates.size(); ++j) groups[gates[j]].push_back(static_cast<int64_t>(j));
  for (const auto& [gate, members] : groups) {
    Tasks tasks{gradient_tasks_.size(), 0};
    for (const std::optional<WeightGradientTiles>* tiles : {&down_, &gate_up_}) {
      for (const int64_t j : members) {
        const int64_t num_tasks = tiles->has_value() ? (*tiles)->num_tasks(j) : 0;
        for (int64_t task = 0; task < num_tasks; ++task) gradient_tasks_.push_back({&**tiles, j, task});
      }
    }
    tasks.second = gradient_tasks_.size();
    const size_t num_tasks = tasks.second - tasks.first;
    TileChain chain;
    chain.add_step(stage(Stage::weight_gradient), static_cast<int64_t>(mlp_.context.threads() == 1 ? std::min<size_t>(num_tasks, 1) : num_tasks));
    chain.behind = gate;
    chain.filler = true;
    if (options_.role == TileRole::routed) chain.expert = static_cast<int32_t>(first_expert + members.front());
    chain.row_end = mlp_.group_rows[static_cast<size_t>(members.front())];
    scheduler.add(std::move(chain), [this, tasks](const TileScheduler::TileAt& at) { run_gradients(tasks, at); });
  }
}

void BackwardTiles::run_task(size_t number, const TileScheduler::TileAt& at) const {
  const BlockChain& blocks = chains_[number];
  const BlockChain& next = chains_[std::min(number + 1, chains_.size() - 1)];
  switch (steps_[static_cast<size_t>(at.step)]) {
    case Step::hidden:
      return blocks.run(*hidden_, at.tile, at.worker, *g_, blocks);
    case Step::before:
      return blocks.run_rows(at.tile, [&](int64_t begin, int64_t end, int64_t) { options_.before(begin, end, at.worker); });
    case Step::g:
      return blocks.run(*g_, at.tile, at.worker, *dx_, blocks);
    case Step::dx:
      return blocks.run(*dx_, at.tile, at.worker, hidden_ ? *hidden_ : *g_, next);
    case Step::activation:
      break;
  }
  std::byte* scratch = scratch_.get() + at.worker * activation_->scratch_bytes();
  blocks.run_rows(at.tile, [&](int64_t begin, int64_t end, int64_t group) { activation_->run(begin, end, group, scratch); });
}

void BackwardTiles::run_gradients(Tasks tasks, const TileScheduler::TileAt& at) const {
  const bool single = mlp_.context.threads() == 1;
  const size_t begin = tasks.first + static_cast<size_t>(at.tile), end = single ? tasks.second : begin + 1;
  for (size_t i = begin; i < end; ++i) {
    const GradientTask& task = gradient_tasks_[i];
    if (early_) {
      early_->run(*task.tiles, task.group, task.task, at.worker);
    } else {
      task.tiles->run(task.group, task.task, at.worker);
    }
  }
}

namespace {

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

Status run_tiles(LayerCall& call, const RoutingPlan& plan, const FusedBackward& rows, const LayerGradients& gradients, const FusedSignals& signals,
                 Gaps gaps) {
  const MlpGradients to{gradients.gate_up, gradients.gate_up_bias, gradients.down, gradients.down_bias, gradients.accumulate};
  BackwardTiles::Options options;
  options.hidden_again = call.config.recompute;
  options.early_bytes = early_gradient_bytes(plan, call.config.hidden * size_of(call.config.dtype));
  PLAIT_ASSIGN_OR_RETURN(BackwardTiles tiles, BackwardTiles::create(routed_experts(call, plan), rows, to, std::move(options)));
  TileScheduler scheduler;
  const int results = add_results_gate(scheduler, call, signals);
  tiles.add_to(scheduler, make_block_chains(plan, tiles.max_rows(), call.context.threads()), results, TileChain::no_gate,
               plan.placement().global(plan.rank(), 0));
  if (gaps == Gaps::filled && call.filler != nullptr) PLAIT_RETURN_IF_ERROR(call.filler->add_to(scheduler));
  PLAIT_RETURN_IF_ERROR(run_scheduler(call, scheduler, signals));
  return bias_gradients(call, plan, rows, gradients);
}

}  // namespace plait::moe
