#include "moe/mlp.h"

#include "base/status_macros.h"
#include "moe/row_sums.h"
#include "ops/grouped_matmul_layout.h"

namespace plait::moe {

Result<Tensor> Mlp::hidden(const ConstTensorView& x) const {
  PLAIT_ASSIGN_OR_RETURN(Tensor h, context.empty(dtype(), {x.shape[0], gate_up.shape[2]}));
  PLAIT_RETURN_IF_ERROR(grouped_matmul(context, x, gate_up, group_rows, gate_up_bias, h, options));
  return h;
}

Result<Tensor> Mlp::activated(const ConstTensorView& h) const {
  PLAIT_ASSIGN_OR_RETURN(Tensor act, context.empty(dtype(), {h.shape[0], intermediate()}));
  PLAIT_RETURN_IF_ERROR(activation_forward(context, activation, h, act));
  return act;
}

Status Mlp::project(const ConstTensorView& act, const TensorView& out) const {
  return grouped_matmul(context, act, down, group_rows, down_bias, out, options);
}

Result<Tensor> Mlp::project_backward(const ConstTensorView& dy) const {
  PLAIT_ASSIGN_OR_RETURN(Tensor g, context.empty(dtype(), {dy.shape[0], intermediate()}));
  PLAIT_RETURN_IF_ERROR(grouped_matmul(context, dy, down.transposed(1, 2), group_rows, {}, g, options));
  return g;
}

Status Mlp::hidden_backward(const ConstTensorView& dh, const TensorView& dx) const {
  return grouped_matmul(context, dh, gate_up.transposed(1, 2), group_rows, {}, dx, options);
}

Mlp routed_experts(const LayerCall& call, const RoutingPlan& plan) {
  const LayerWeights& w = call.weights;
  GroupedMatmulOptions options;
  options.fused = call.dispatcher != Dispatcher::eager;
  return {call.context, call.config.activation, w.gate_up, w.gate_up_bias, w.down, w.down_bias, plan.expert_rows(), options};
}

Status project_gradients(const Mlp& mlp, const ConstTensorView& act_w, const ConstTensorView& dy, const ConstTensorView& weights,
                         const MlpGradients& gradients) {
  if (gradients.down.defined()) {
    PLAIT_RETURN_IF_ERROR(grouped_matmul_k(mlp.context, act_w, dy, mlp.group_rows, gradients.down, gradients.accumulate, mlp.options));
  }
  if (!gradients.down_bias.defined()) return {};
  return scaled_row_sums(mlp.context, gmm_layout::rows_of(dy), dy.dtype, weights.as<float>(), mlp.group_rows, AbsentRows::skip, gradients.down_bias,
                         gradients.accumulate);
}

Status hidden_gradients(const Mlp& mlp, const ConstTensorView& x, const ConstTensorView& dh, const MlpGradients& gradients) {
  if (gradients.gate_up.defined()) {
    PLAIT_RETURN_IF_ERROR(grouped_matmul_k(mlp.context, x, dh, mlp.group_rows, gradients.gate_up, gradients.accumulate, mlp.options));
  }
  if (!gradients.gate_up_bias.defined()) return {};
  return grouped_bias_gradient(mlp.context, dh, mlp.group_rows, gradients.gate_up_bias, gradients.accumulate, mlp.options);
}

}  // namespace plait::moe
