#include "moe/router_stage.h"

#include <algorithm>
#include <cstring>

#include "base/status_macros.h"
#include "moe/rows.h"
#include "ops/dense_rows.h"
#include "plait/grouped_matmul.h"
#include "plait/permute.h"

namespace plait::moe {
namespace {

/// x and the router's weight in the type of the logits.
struct RouterOperands {
  DenseInput x, weight;
};

Result<RouterOperands> router_operands(const LayerCall& call, const ConstTensorView& x) {
  const DType dtype = call.config.router_f32 ? DType::f32 : call.config.dtype;
  RouterOperands operands;
  PLAIT_ASSIGN_OR_RETURN(operands.x, rows_as(call.context, x, dtype));
  PLAIT_ASSIGN_OR_RETURN(operands.weight, rows_as(call.context, call.weights.router, dtype));
  return operands;
}

Status decide(LayerCall& call, const ConstTensorView& x, LayerState& state) {
  const Context& context = call.context;
  const RouterConfig& router = call.config.router;
  const int64_t tokens = x.shape[0];
  PLAIT_ASSIGN_OR_RETURN(const RouterOperands operands, router_operands(call, x));
  PLAIT_ASSIGN_OR_RETURN(state.logits, context.empty(operands.x.view.dtype, {tokens, router.num_experts}));
  PLAIT_ASSIGN_OR_RETURN(state.scores, context.empty(DType::f32, {tokens, router.num_experts}));
  const ConstTensorView weight = as_group(operands.weight.view).transposed(1, 2);
  PLAIT_RETURN_IF_ERROR(grouped_matmul(context, operands.x.view, weight, {&tokens, 1}, as_group(call.weights.router_bias), state.logits));
  PLAIT_ASSIGN_OR_RETURN(state.losses,
                         route(context, router, state.logits, call.weights.choice_bias, state.ids, state.weights, state.scores, call.group.rank()));
  state.router_used = true;
  return {};
}

template <typename T>
void copy_elements(const ConstTensorView& from, T* to) {
  for (int64_t t = 0; t < from.shape[0]; ++t) {
    for (int64_t slot = 0; slot < from.shape[1]; ++slot) std::memcpy(to++, from.at(t, slot), sizeof(T));
  }
}

/// The state keeps copies: the caller's routing may be gone by the time of backward.
void take_given(const GivenRouting& given, LayerState& state) {
  copy_elements(given.ids, state.ids.as<int32_t>());
  if (given.weights.defined()) {
    copy_elements(given.weights, state.weights.as<float>());
  } else {
    std::fill_n(state.weights.as<float>(), state.weights.view.num_elements(), 1.0F);
  }
}

/// (T,k) from the rows that came home; entries that took no part have 0.
Result<Tensor> weights_gradient(const Context& context, const LayerState& state, const ConstTensorView& entry_dweights) {
  PLAIT_ASSIGN_OR_RETURN(Tensor dweights, context.empty(DType::f32, {state.weights.view.shape[0], state.weights.view.shape[1]}));
  const auto* position = state.position.as<int32_t>();
  for (int64_t i = 0; i < dweights.view.num_elements(); ++i) {
    dweights.as<float>()[i] = position[i] >= 0 ? entry_dweights.as<float>()[position[i]] : 0.0F;
  }
  return dweights;
}

Status router_gradients(const LayerCall& call, const ConstTensorView& x, const ConstTensorView& dlogits, const LayerGradients& gradients) {
  const int64_t tokens = x.shape[0];
  if (gradients.router.defined()) {
    PLAIT_RETURN_IF_ERROR(grouped_matmul_k(call.context, dlogits, x, {&tokens, 1}, as_group(gradients.router), gradients.accumulate));
  }
  if (!gradients.router_bias.defined()) return {};
  return grouped_bias_gradient(call.context, dlogits, {&tokens, 1}, as_group(gradients.router_bias), gradients.accumulate);
}

}  // namespace

Result<std::vector<int64_t>> route_tokens(LayerCall& call, const ConstTensorView& x, const GivenRouting& given, LayerState& state) {
  StageScope scope(call, Stage::route);
  const int64_t tokens = x.shape[0], k = call.config.router.top_k;
  PLAIT_ASSIGN_OR_RETURN(state.ids, call.context.empty(DType::i32, {tokens, k}));
  PLAIT_ASSIGN_OR_RETURN(state.weights, call.context.empty(DType::f32, {tokens, k}));
  PLAIT_ASSIGN_OR_RETURN(state.position, call.context.empty(DType::i32, {tokens * k}));
  if (given.ids.defined()) {
    take_given(given, state);
  } else {
    PLAIT_RETURN_IF_ERROR(decide(call, x, state));
  }
  return sort_by_expert(call.context, state.ids, call.config.router.num_experts, call.config.sentinel, state.position, call.group.rank());
}

Result<DenseInput> route_tokens_backward(LayerCall& call, const ConstTensorView& x, const LayerState& state, const ConstTensorView& entry_dweights,
                                         const LayerGradients& gradients, const TensorView& dweights, float loss_scale) {
  StageScope scope(call, Stage::backward_route);
  const Context& context = call.context;
  PLAIT_ASSIGN_OR_RETURN(const Tensor gradient, weights_gradient(context, state, entry_dweights));
  if (dweights.defined()) copy_elements(context, gradient, dweights);
  if (!state.router_used) return DenseInput{};

  const int64_t tokens = x.shape[0];
  PLAIT_ASSIGN_OR_RETURN(const RouterOperands operands, router_operands(call, x));
  const DType dtype = operands.x.view.dtype;
  PLAIT_ASSIGN_OR_RETURN(const Tensor dlogits, context.empty(dtype, {tokens, call.config.router.num_experts}));
  PLAIT_RETURN_IF_ERROR(
      route_backward(context, call.config.router, state.logits, state.scores, state.ids, state.weights, gradient, loss_scale, dlogits));
  PLAIT_RETURN_IF_ERROR(router_gradients(call, operands.x.view, dlogits, gradients));
  PLAIT_ASSIGN_OR_RETURN(const Tensor dx, context.empty(dtype, {tokens, call.config.hidden}));
  PLAIT_RETURN_IF_ERROR(grouped_matmul(context, dlogits, as_group(operands.weight.view), {&tokens, 1}, {}, dx));
  PLAIT_ASSIGN_OR_RETURN(DenseInput rounded, rows_as(context, dx, call.config.dtype));
  return rounded.copy.defined() ? rounded : DenseInput{dx, dx};
}

}  // namespace plait::moe
