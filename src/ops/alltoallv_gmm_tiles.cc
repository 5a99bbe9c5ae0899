#include "ops/alltoallv_gmm_tiles.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "ops/grouped_matmul_layout.h"
#include "routing/window_buffer.h"

namespace plait::a2av {

kernels::Rows PairTiles::rows() const { return copies() ? gmm_layout::rows_of(ConstTensorView(operands_.permuted)) : operands_.rows; }

Status PairTiles::prepare() {
  PLAIT_ASSIGN_OR_RETURN(
      product_,
      MatmulTiles::create(call_.context, {.x = rows(), .weight = call_.weight, .bias = call_.bias, .y = operands_.y, .counts = plan_.expert_rows()}));
  blocks_ = make_expert_blocks(plan_, product_->max_rows());
  if (call_.gradient.dw.defined()) {
    PLAIT_ASSIGN_OR_RETURN(gradient_rows_, DenseInput::make(call_.context, call_.gradient.rows));
    PLAIT_ASSIGN_OR_RETURN(gradient_, WeightGradientTiles::create(call_.context, {.x = gmm_layout::rows_of(gradient_rows_.view),
                                                                                  .dy = rows(),
                                                                                  .dtype = call_.x.dtype,
                                                                                  .dw = call_.gradient.dw,
                                                                                  .accumulate = call_.accumulate,
                                                                                  .counts = plan_.expert_rows()}));
  }
  return prepare_shared();
}

Status PairTiles::prepare_shared() {
  const Context& context = call_.context;
  if (call_.shared.x.defined()) {
    PLAIT_ASSIGN_OR_RETURN(shared_x_, DenseInput::make(context, call_.shared.x));
    shared_rows_ = {call_.shared.x.shape[0]};
    PLAIT_ASSIGN_OR_RETURN(shared_, MatmulTiles::create(context, {.x = gmm_layout::rows_of(shared_x_.view),
                                                                  .weight = as_group(call_.shared.weight),
                                                                  .bias = {},
                                                                  .y = gmm_layout::rows_of(operands_.shared_y),
                                                                  .counts = shared_rows_}));
    shared_blocks_ = make_own_blocks(shared_rows_[0], shared_->max_rows());
  }
  const SharedGradient& gradient = call_.shared_gradient;
  if (!gradient.dw.defined()) return {};
  PLAIT_ASSIGN_OR_RETURN(shared_gradient_x_, DenseInput::make(context, gradient.x));
  PLAIT_ASSIGN_OR_RETURN(shared_gradient_dy_, DenseInput::make(context, gradient.dy));
  shared_gradient_rows_ = {gradient.x.shape[0]};
  PLAIT_ASSIGN_OR_RETURN(shared_gradient_, WeightGradientTiles::create(context, {.x = gmm_layout::rows_of(shared_gradient_x_.view),
                                                                                 .dy = gmm_layout::rows_of(shared_gradient_dy_.view),
                                                                                 .dtype = gradient.x.dtype,
                                                                                 .dw = as_group(gradient.dw),
                                                                                 .accumulate = call_.accumulate,
                                                                                 .counts = shared_gradient_rows_}));
  return {};
}

void PairTiles::add(TileScheduler& scheduler, TileChain chain, const Work& work) {
  const auto number = static_cast<int>(works_.size());
  scheduler.add(std::move(chain), [this, number](const TileScheduler::TileAt& at) { run_tile(number, at); });
  works_.push_back(work);
}

/// The weight gradients of rows that arrive may begin before all of them have.
void PairTiles::prepare_early(TileScheduler& scheduler, const std::vector<int>& expert_gates) {
  if (!gradient_ || call_.way == Way::home) return;
  early_.emplace(call_.context, std::vector<const WeightGradientTiles*>{&*gradient_}, early_gradient_bytes(plan_, call_.row_bytes()));
  std::vector<EarlyGradients::BlockEnd> ends;
  ends.reserve(blocks_.size());
  for (const ExpertBlock& block : blocks_) ends.push_back({block.local_expert, block.row_end});
  early_->add_gates(scheduler, std::move(ends), expert_gates);
}

void PairTiles::add_blocks(TileScheduler& scheduler, int results, const std::vector<int>& expert_gates) {
  for (const ExpertBlock& block : blocks_) {
    TileChain chain = chain_of(plan_, block);
    if (call_.way == Way::home) chain.sources.clear();
    if (copies()) chain.add_step(call_.travel, RowPieces(block, call_.context.threads()).count());
    chain.leads[1] = {expert_gates[static_cast<size_t>(block.local_expert)], 0};
    if (early_) chain.leads[2] = {early_->gate_of({block.local_expert, block.row_end}), 0};
    chain.leads[0] = {results, chain.num_steps};
    chain.add_step(call_.product, product_->num_tasks());
    add(scheduler, std::move(chain), {.product = &*product_, .block = &block});
  }
}

void PairTiles::add_gradients(TileScheduler& scheduler, const std::vector<int>& expert_gates) {
  for (int64_t j = 0; gradient_ && j < plan_.placement().experts_per_rank(); ++j) {
    TileChain chain;
    chain.add_step(Stage::weight_gradient, gradient_->num_tasks(j));
    if (call_.way == Way::out) chain.behind = expert_gates[static_cast<size_t>(j)];
    chain.filler = true;
    chain.expert = static_cast<int32_t>(plan_.placement().global(plan_.rank(), j));
    chain.row_end = plan_.expert_rows()[static_cast<size_t>(j)];
    add(scheduler, std::move(chain), {.gradient = &*gradient_, .group = j});
  }
}

void PairTiles::add_shared(TileScheduler& scheduler) {
  TileChain chain;
  chain.filler = true;
  for (const ExpertBlock& block : shared_blocks_) {
    TileChain product = chain;
    product.row_begin = block.row_begin;
    product.row_end = block.row_end;
    product.add_step(Stage::shared_expert, shared_->num_tasks());
    add(scheduler, std::move(product), {.product = &*shared_, .block = &block});
  }
  if (!shared_gradient_) return;
  chain.row_end = shared_gradient_rows_[0];
  chain.add_step(Stage::weight_gradient, shared_gradient_->num_tasks(0));
  add(scheduler, std::move(chain), {.gradient = &*shared_gradient_});
}

void PairTiles::copy_piece(const ExpertBlock& block, int64_t piece) const {
  const RowPieces pieces(block, call_.context.threads());
  for (int64_t i = pieces.begin(piece); i < pieces.end(piece); ++i) {
    std::memcpy(operands_.permuted.at(i), operands_.rows[i], static_cast<size_t>(call_.row_bytes()));
  }
}

void PairTiles::run_tile(int chain, const TileScheduler::TileAt& at) const {
  const Work& work = works_[static_cast<size_t>(chain)];
  if (early_ && work.gradient == &*gradient_) return early_->run(*gradient_, work.group, at.tile, at.worker);
  if (work.gradient != nullptr) return work.gradient->run(work.group, at.tile, at.worker);
  if (copies() && at.step == 0 && work.product == &*product_) return copy_piece(*work.block, at.tile);
  const Work& next = works_[std::min(static_cast<size_t>(chain) + 1, works_.size() - 1)];
  if (next.product == nullptr) return work.product->run(*work.block, at.tile, at.worker);
  const kernels::NextTile hint = next.product->first_tile(*next.block);
  work.product->run(*work.block, at.tile, at.worker, &hint);
}

Status PairTiles::run(const FusedSignals& signals) {
  TileScheduler scheduler;
  const int results =
      call_.way == Way::out ? TileChain::no_gate : scheduler.add_gate([&] { return call_.group.signal(results_there, signals.results); });
  std::vector<int> expert_gates;
  for (int64_t j = 0; j < plan_.placement().experts_per_rank(); ++j) expert_gates.push_back(scheduler.add_gate());
  prepare_early(scheduler, expert_gates);
  add_blocks(scheduler, results, expert_gates);
  add_gradients(scheduler, expert_gates);
  add_shared(scheduler);
  if (early_) early_->add_chains(scheduler, plan_.placement().global(plan_.rank(), 0));
  Status status = scheduler.run(call_.context, call_.group, signals.rows);
  if (!status.ok()) call_.unfinished = scheduler.describe_unfinished();
  return status;
}

}  // namespace plait::a2av
