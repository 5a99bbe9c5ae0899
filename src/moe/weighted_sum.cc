#include "moe/weighted_sum.h"

#include <vector>

#include "base/status_macros.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_set.h"
#include "ops/weighted_tree.h"

namespace plait::moe {
namespace {

/// One thread's memory for one token at a time.
struct TokenSum {
  RowSum steps;
  std::vector<TreeTerm> terms;
};

/// out[t] = the tree over the token's entries, then what `add_rows(t, steps)` adds; rounded once.
template <typename AddRows>
Status sum_tokens(LayerCall& call, const LayerState& state, const HomeRows& rows, bool weighted, const TensorView& out, AddRows add_rows) {
  StageScope scope(call, Stage::weighted_sum);
  const Context& context = call.context;
  PLAIT_ASSIGN_OR_RETURN(const DenseOutput dense, DenseOutput::make(context, out));
  std::vector<TokenSum> threads(static_cast<size_t>(context.threads()));
  const int64_t token_bytes = (state.ids.view.shape[1] + 1) * out.shape[1] * size_of(out.dtype);
  for_blocks(context, out.shape[0], token_bytes, [&](int64_t begin, int64_t end, int worker) {
    auto& [steps, terms] = threads[static_cast<size_t>(worker)];
    for (int64_t t = begin; t < end; ++t) {
      rows.terms(state, t, weighted, terms);
      steps.clear();
      steps.add_tree(terms, call.config.router.num_experts);
      add_rows(t, steps);
      steps.sum(*context.kernels().elementwise, out.dtype, dense.view.at(t), out.shape[1]);
    }
  });
  dense.finish(context);
  return {};
}

TreeTerm plain_row(const ConstTensorView& rows, int64_t t) { return {.row = rows.defined() ? rows.at(t) : nullptr, .type = rows.dtype}; }

}  // namespace

Status weighted_sum(LayerCall& call, const LayerState& state, const HomeRows& rows, const ConstTensorView& shared, const TensorView& y) {
  return sum_tokens(call, state, rows, true, y, [&](int64_t t, RowSum& steps) {
    TreeTerm term = plain_row(shared, t);
    term.weighted = state.shared_scale.defined();
    if (term.weighted) term.weight = state.shared_scale.as<float>()[t];
    steps.add_row(term);
  });
}

Status sum_input_gradients(LayerCall& call, const LayerState& state, const HomeRows& rows, const ConstTensorView& dx_router,
                           const ConstTensorView& dx_shared, const TensorView& dx) {
  return sum_tokens(call, state, rows, false, dx, [&](int64_t t, RowSum& steps) {
    steps.add_row(plain_row(dx_router, t));
    steps.add_row(plain_row(dx_shared, t));
  });
}

}  // namespace plait::moe
