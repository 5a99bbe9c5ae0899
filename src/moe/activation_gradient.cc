#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_set.h"
#include "moe/mlp.h"
#include "ops/dense_rows.h"

namespace plait::moe {
namespace {

class Rows {
 public:
  Rows(const Mlp& mlp, const ConstTensorView& h, const ConstTensorView& g, const ConstTensorView& dy, const ConstTensorView& weights,
       const TensorView& dweights, const ActivationGradient& out)
      : mlp_(mlp), kernels_(*mlp.context.kernels().elementwise), h_(h), g_(g), dy_(dy), weights_(weights), dweights_(dweights), out_(out) {
    for (int64_t rows : mlp.group_rows) group_ends_.push_back((group_ends_.empty() ? 0 : group_ends_.back()) + rows);
  }

  /// `act` is room for one row of the calling thread.
  void run(int64_t begin, int64_t end, std::byte* act) const {
    auto group = static_cast<size_t>(std::upper_bound(group_ends_.begin(), group_ends_.end(), begin) - group_ends_.begin());
    for (int64_t i = begin; i < end; ++i) {
      while (group_ends_[group] <= i) ++group;
      if (dweights_.defined()) dweights_.as<float>()[i] = weight_gradient(i, static_cast<int64_t>(group), act);
      const float weight = weights_.defined() ? weights_.as<float>()[i] : 1.0F;
      kernels_.activation_backward(mlp_.activation, h_.dtype, h_.at(i), g_.at(i), weight, out_.dh.view.at(i), out_.act_w.view.at(i), g_.shape[1]);
    }
  }

 private:
  float weight_gradient(int64_t row, int64_t group, std::byte* act) const {
    kernels_.activation_forward(mlp_.activation, h_.dtype, h_.at(row), act, g_.shape[1]);
    const float through_act = kernels_.dot(g_.dtype, act, g_.at(row), g_.shape[1]);
    if (!mlp_.down_bias.defined()) return through_act;
    return through_act + kernels_.dot(dy_.dtype, mlp_.down_bias.at(group), dy_.at(row), dy_.shape[1]);
  }

  const Mlp& mlp_;
  const kernels::ElementwiseKernels& kernels_;
  const ConstTensorView &h_, &g_, &dy_, &weights_;
  const TensorView& dweights_;
  const ActivationGradient& out_;
  std::vector<int64_t> group_ends_;
};

}  // namespace

Result<ActivationGradient> activation_gradient(const Mlp& mlp, const ConstTensorView& h, const ConstTensorView& g, const ConstTensorView& dy,
                                               const ConstTensorView& weights, const TensorView& dweights) {
  const Context& context = mlp.context;
  const int64_t num_rows = h.shape[0], columns = h.shape[1], row_bytes = g.shape[1] * size_of(g.dtype);
  ActivationGradient out;
  PLAIT_ASSIGN_OR_RETURN(out.dh, context.empty(h.dtype, {num_rows, columns}));
  PLAIT_ASSIGN_OR_RETURN(out.act_w, context.empty(h.dtype, {num_rows, g.shape[1]}));
  PLAIT_ASSIGN_OR_RETURN(const Buffer act, context.scratch(context.threads() * row_bytes));
  const Rows rows(mlp, h, g, dy, weights, dweights, out);
  for_blocks(context, num_rows, columns * size_of(h.dtype),
             [&](int64_t begin, int64_t end, int worker) { rows.run(begin, end, act.get() + worker * row_bytes); });
  return out;
}

}  // namespace plait::moe
