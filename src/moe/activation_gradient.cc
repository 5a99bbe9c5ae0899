#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "moe/activation_rows.h"
#include "moe/mlp.h"
#include "ops/dense_rows.h"
#include "ops/grouped_matmul_layout.h"

namespace plait::moe {
namespace {

/// Calls run(begin, end, group) for the parts of [begin, end) that lie in one group each.
template <typename Run>
void for_groups(const std::vector<int64_t>& group_ends, int64_t begin, int64_t end, Run run) {
  auto group = std::upper_bound(group_ends.begin(), group_ends.end(), begin);
  while (begin < end) {
    const int64_t part_end = std::min(*group, end);
    if (begin < part_end) run(begin, part_end, group - group_ends.begin());
    begin = part_end;
    ++group;
  }
}

}  // namespace

Result<ActivationGradient> activation_gradient(const Mlp& mlp, const ConstTensorView& h, const ConstTensorView& g, const ConstTensorView& dy,
                                               const ConstTensorView& weights, const TensorView& dweights) {
  const Context& context = mlp.context;
  const int64_t num_rows = h.shape[0], columns = h.shape[1];
  ActivationGradient out;
  PLAIT_ASSIGN_OR_RETURN(out.dh, context.empty(h.dtype, {num_rows, columns}));
  PLAIT_ASSIGN_OR_RETURN(out.act_w, context.empty(h.dtype, {num_rows, g.shape[1]}));
  ActivationRows rows{.context = context, .activation = mlp.activation, .dtype = h.dtype, .intermediate = g.shape[1], .down_bias = mlp.down_bias};
  rows.h = gmm_layout::rows_of(h);
  rows.g = gmm_layout::rows_of(g);
  rows.dy = gmm_layout::rows_of(dy);
  rows.weights = weights.defined() ? weights.as<float>() : nullptr;
  rows.wants_dweights = dweights.defined();
  if (dweights.defined()) rows.dweights = gmm_layout::rows_of(dweights);
  rows.dh = gmm_layout::rows_of(out.dh.view);
  rows.act_w = gmm_layout::rows_of(out.act_w.view);
  PLAIT_ASSIGN_OR_RETURN(const Buffer scratch, context.scratch(context.threads() * rows.scratch_bytes()));
  std::vector<int64_t> group_ends;
  for (int64_t count : mlp.group_rows) group_ends.push_back((group_ends.empty() ? 0 : group_ends.back()) + count);
  for_blocks(context, num_rows, columns * size_of(h.dtype), [&](int64_t begin, int64_t end, int worker) {
    for_groups(group_ends, begin, end,
               [&](int64_t first, int64_t last, int64_t group) { rows.run(first, last, group, scratch.get() + worker * rows.scratch_bytes()); });
  });
  return out;
}

}  // namespace plait::moe
