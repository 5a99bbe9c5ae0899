#include "moe/shared_expert.h"

#include "base/status_macros.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_set.h"
#include "moe/mlp.h"
#include "moe/row_sums.h"
#include "moe/rows.h"
#include "ops/grouped_matmul_layout.h"

namespace plait::moe {
namespace {

/// Calls fn(token, worker) for all tokens, each of which reads some whole rows.
template <typename Fn>
void for_each_token(const Context& context, int64_t tokens, int64_t row_bytes, Fn fn) {
  for_blocks(context, tokens, row_bytes, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t t = begin; t < end; ++t) fn(t, worker);
  });
}

/// One group of all tokens; `tokens` must outlive it.
Mlp shared_mlp(const LayerCall& call, const int64_t& tokens) {
  const LayerWeights& w = call.weights;
  return {call.context, call.config.activation, as_group(w.shared_gate_up), {}, as_group(w.shared_down), {}, {&tokens, 1}, {}};
}

/// The gate's vector with contiguous elements, as one row.
Result<DenseInput> gate_vector(const LayerCall& call) { return rows_as(call.context, as_group(call.weights.shared_gate), call.config.dtype); }

/// s (T) = sigmoid(dot(x, w)).
Result<Tensor> gate_values(const LayerCall& call, const ConstTensorView& x) {
  const kernels::ElementwiseKernels& kernels = *call.context.kernels().elementwise;
  PLAIT_ASSIGN_OR_RETURN(const DenseInput gate, gate_vector(call));
  PLAIT_ASSIGN_OR_RETURN(Tensor values, call.context.empty(DType::f32, {x.shape[0]}));
  for_each_token(call.context, x.shape[0], x.shape[1] * size_of(x.dtype), [&](int64_t t, int) {
    const float z = kernels.dot(x.dtype, x.at(t), gate.view.data, x.shape[1]);
    kernels.sigmoid(&z, values.as<float>() + t, 1);
  });
  return values;
}

/// What backward reads of the forward pass: kept, or computed again.
struct SharedRows {
  Tensor h, row;  ///< `row` only with a gate
};

Result<SharedRows> shared_rows(const LayerCall& call, const Mlp& mlp, const ConstTensorView& x, const LayerState& state) {
  SharedRows rows{state.shared_h, state.shared_row};
  if (!call.config.recompute) return rows;
  PLAIT_ASSIGN_OR_RETURN(rows.h, mlp.hidden(x));
  if (!call.config.shared_gate) return rows;
  PLAIT_ASSIGN_OR_RETURN(const Tensor act, mlp.activated(rows.h));
  PLAIT_ASSIGN_OR_RETURN(rows.row, call.context.empty(call.config.dtype, {x.shape[0], call.config.hidden}));
  PLAIT_RETURN_IF_ERROR(mlp.project(act, rows.row));
  return rows;
}

/// Through the gate: the MLP's gradient round(s * dy), and dz = (ds * s) * (1 - s) with ds = dot(dy, row).
struct GateGradient {
  Tensor dy, dz;  ///< (T,H), (T,1) f32
};
Result<GateGradient> gate_gradient(const LayerCall& call, const Tensor& row, const Tensor& scale, const ConstTensorView& dy) {
  const Context& context = call.context;
  const kernels::ElementwiseKernels& kernels = *context.kernels().elementwise;
  const int64_t tokens = dy.shape[0], hidden = dy.shape[1];
  GateGradient out;
  PLAIT_ASSIGN_OR_RETURN(out.dy, context.empty(dy.dtype, {tokens, hidden}));
  PLAIT_ASSIGN_OR_RETURN(out.dz, context.empty(DType::f32, {tokens, 1}));
  PLAIT_ASSIGN_OR_RETURN(const Tensor products, context.empty(DType::f32, {context.threads(), hidden}));
  for_each_token(context, tokens, hidden * size_of(DType::f32), [&](int64_t t, int worker) {
    const float s = scale.as<float>()[t];
    const float ds = kernels.dot(dy.dtype, dy.at(t), row.view.at(t), hidden);
    out.dz.as<float>()[t] = ds * s * (1.0F - s);
    auto* product = reinterpret_cast<float*>(products.view.at(worker));
    kernels.scale(dy.dtype, s, dy.at(t), product, hidden);
    kernels.store(dy.dtype, product, out.dy.view.at(t), hidden);
  });
  return out;
}

/// dx_shared = round(dx + dz * w), in place.
Status add_gate_part(const LayerCall& call, const Tensor& dz, const Tensor& dx) {
  const Context& context = call.context;
  const kernels::ElementwiseKernels& kernels = *context.kernels().elementwise;
  const int64_t tokens = dx.view.shape[0], hidden = dx.view.shape[1];
  PLAIT_ASSIGN_OR_RETURN(const DenseInput gate, gate_vector(call));
  PLAIT_ASSIGN_OR_RETURN(const Tensor sums, context.empty(DType::f32, {context.threads(), hidden}));
  for_each_token(context, tokens, hidden * size_of(DType::f32), [&](int64_t t, int worker) {
    auto* sum = reinterpret_cast<float*>(sums.view.at(worker));
    kernels.load(dx.view.dtype, dx.view.at(t), sum, hidden);
    kernels.scale_add(gate.view.dtype, dz.as<float>()[t], gate.view.data, sum, hidden);
    kernels.store(dx.view.dtype, sum, dx.view.at(t), hidden);
  });
  return {};
}

/// From the gradient of the MLP's rows to its parameters' gradients and its part of dx.
Result<Tensor> mlp_backward(const LayerCall& call, const Mlp& mlp, const ConstTensorView& x, const ConstTensorView& h, const ConstTensorView& dy,
                            const LayerGradients& gradients) {
  const MlpGradients to{as_group(gradients.shared_gate_up), {}, as_group(gradients.shared_down), {}, gradients.accumulate};
  PLAIT_ASSIGN_OR_RETURN(const Tensor g, mlp.project_backward(dy));
  PLAIT_ASSIGN_OR_RETURN(const ActivationGradient d, activation_gradient(mlp, h, g, dy, {}, {}));
  PLAIT_RETURN_IF_ERROR(project_gradients(mlp, d.act_w, dy, {}, to));
  PLAIT_RETURN_IF_ERROR(hidden_gradients(mlp, x, d.dh, to));
  PLAIT_ASSIGN_OR_RETURN(Tensor dx, call.context.empty(x.dtype, {x.shape[0], x.shape[1]}));
  PLAIT_RETURN_IF_ERROR(mlp.hidden_backward(d.dh, dx));
  return dx;
}

}  // namespace

Result<Tensor> shared_expert_forward(LayerCall& call, const ConstTensorView& x, LayerState& state) {
  if (call.config.shared_intermediate == 0) return Tensor{};
  StageScope scope(call, Stage::shared_expert);
  const int64_t tokens = x.shape[0];
  const Mlp mlp = shared_mlp(call, tokens);
  PLAIT_ASSIGN_OR_RETURN(const Tensor h, mlp.hidden(x));
  PLAIT_ASSIGN_OR_RETURN(const Tensor act, mlp.activated(h));
  PLAIT_ASSIGN_OR_RETURN(Tensor row, call.context.empty(call.config.dtype, {tokens, call.config.hidden}));
  PLAIT_RETURN_IF_ERROR(mlp.project(act, row));
  if (call.config.shared_gate) {
    PLAIT_ASSIGN_OR_RETURN(state.shared_scale, gate_values(call, x));
  }
  if (!call.config.recompute) {
    state.shared_h = h;
    if (call.config.shared_gate) state.shared_row = row;
  }
  return row;
}

Result<Tensor> shared_expert_backward(LayerCall& call, const ConstTensorView& x, const LayerState& state, const ConstTensorView& dy,
                                      const LayerGradients& gradients) {
  if (call.config.shared_intermediate == 0) return Tensor{};
  StageScope scope(call, Stage::shared_expert);
  const int64_t tokens = x.shape[0];
  const Mlp mlp = shared_mlp(call, tokens);
  PLAIT_ASSIGN_OR_RETURN(const SharedRows rows, shared_rows(call, mlp, x, state));
  if (!call.config.shared_gate) return mlp_backward(call, mlp, x, rows.h, dy, gradients);

  PLAIT_ASSIGN_OR_RETURN(const GateGradient through_gate, gate_gradient(call, rows.row, state.shared_scale, dy));
  PLAIT_ASSIGN_OR_RETURN(Tensor dx, mlp_backward(call, mlp, x, rows.h, through_gate.dy, gradients));
  PLAIT_RETURN_IF_ERROR(add_gate_part(call, through_gate.dz, dx));
  if (gradients.shared_gate.defined()) {
    PLAIT_RETURN_IF_ERROR(scaled_row_sums(call.context, gmm_layout::rows_of(x), x.dtype, through_gate.dz.as<float>(), {&tokens, 1}, AbsentRows::add,
                                          as_group(gradients.shared_gate), gradients.accumulate));
  }
  return dx;
}

}  // namespace plait::moe
