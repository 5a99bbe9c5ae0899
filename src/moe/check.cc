#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "base/status_macros.h"
#include "moe/call.h"
#include "ops/grouped_matmul_layout.h"

namespace plait::moe {
namespace {

Status fail(std::string_view what, const ConstTensorView& view, std::string_view rule) {
  return Status::invalid_argument(fmt::format("layer: {} is {}; {}", what, view.defined() ? describe(view) : "undefined", rule));
}

/// Defined, of this type and shape.
Status require(std::string_view what, const ConstTensorView& view, DType dtype, std::initializer_list<int64_t> shape) {
  const bool same_shape = view.num_dims == static_cast<int>(shape.size()) && std::equal(shape.begin(), shape.end(), view.shape.begin());
  if (same_shape && view.dtype == dtype) return {};
  return fail(what, view, fmt::format("it must be {} ({})", name(dtype), fmt::join(shape, ", ")));
}

Status require_result(std::string_view what, const TensorView& view, DType dtype, std::initializer_list<int64_t> shape) {
  PLAIT_RETURN_IF_ERROR(require(what, view, dtype, shape));
  return gmm_layout::check_result_layout("layer", what, view);
}

Status optional(std::string_view what, const ConstTensorView& view, DType dtype, std::initializer_list<int64_t> shape) {
  return view.defined() ? require(what, view, dtype, shape) : Status();
}

/// A parameter that the configuration either asks for or rules out.
Status parameter(std::string_view what, const ConstTensorView& view, bool wanted, std::string_view option, DType dtype,
                 std::initializer_list<int64_t> shape) {
  if (wanted) return require(what, view, dtype, shape);
  return view.defined() ? fail(what, view, fmt::format("the configuration has none; set {}", option)) : Status();
}

Status check_weights(const LayerCall& call, bool router_needed) {
  const LayerConfig& c = call.config;
  const LayerWeights& w = call.weights;
  const int64_t num_experts = c.router.num_experts, local = call.placement().experts_per_rank(), columns = call.hidden_columns();
  const int64_t shared_columns = c.activation.hidden_columns(c.shared_intermediate);
  const bool shared = c.shared_intermediate > 0;
  if (router_needed) PLAIT_RETURN_IF_ERROR(require("router weight", w.router, c.dtype, {num_experts, c.hidden}));
  PLAIT_RETURN_IF_ERROR(optional("router bias", w.router_bias, DType::f32, {num_experts}));
  PLAIT_RETURN_IF_ERROR(optional("choice bias", w.choice_bias, DType::f32, {num_experts}));
  PLAIT_RETURN_IF_ERROR(require("gate_up weight", w.gate_up, c.dtype, {local, c.hidden, columns}));
  PLAIT_RETURN_IF_ERROR(require("down weight", w.down, c.dtype, {local, c.intermediate, c.hidden}));
  PLAIT_RETURN_IF_ERROR(parameter("gate_up bias", w.gate_up_bias, c.expert_bias, "expert_bias", c.dtype, {local, columns}));
  PLAIT_RETURN_IF_ERROR(parameter("down bias", w.down_bias, c.expert_bias, "expert_bias", c.dtype, {local, c.hidden}));
  PLAIT_RETURN_IF_ERROR(parameter("shared gate_up weight", w.shared_gate_up, shared, "shared_intermediate", c.dtype, {c.hidden, shared_columns}));
  PLAIT_RETURN_IF_ERROR(parameter("shared down weight", w.shared_down, shared, "shared_intermediate", c.dtype, {c.shared_intermediate, c.hidden}));
  return parameter("shared gate", w.shared_gate, c.shared_gate, "shared_gate", c.dtype, {c.hidden});
}

/// Undefined, or of the parameter's shape: float32 where it is added to, else the parameter's type or float32.
Status gradient(std::string_view what, const TensorView& view, const ConstTensorView& of, bool accumulate) {
  if (!view.defined()) return {};
  const std::string name_of = fmt::format("gradient of the {}", what);
  if (!of.defined()) return fail(name_of, view, "the layer has no such parameter; leave it undefined");
  const bool same_shape = view.num_dims == of.num_dims && std::equal(of.shape.begin(), of.shape.begin() + of.num_dims, view.shape.begin());
  if (!same_shape) return fail(name_of, view, fmt::format("it must have the shape of the parameter, {}", describe(of)));
  if (view.dtype != DType::f32 && (accumulate || view.dtype != of.dtype)) {
    return fail(name_of, view, accumulate ? "it must be f32, because it is added to" : fmt::format("it must be {} or f32", name(of.dtype)));
  }
  return gmm_layout::check_result_layout("layer", name_of, view);
}

Status check_gradients(const LayerWeights& w, const LayerGradients& g) {
  PLAIT_RETURN_IF_ERROR(gradient("router weight", g.router, w.router, g.accumulate));
  PLAIT_RETURN_IF_ERROR(gradient("router bias", g.router_bias, w.router_bias, g.accumulate));
  PLAIT_RETURN_IF_ERROR(gradient("gate_up weight", g.gate_up, w.gate_up, g.accumulate));
  PLAIT_RETURN_IF_ERROR(gradient("gate_up bias", g.gate_up_bias, w.gate_up_bias, g.accumulate));
  PLAIT_RETURN_IF_ERROR(gradient("down weight", g.down, w.down, g.accumulate));
  PLAIT_RETURN_IF_ERROR(gradient("down bias", g.down_bias, w.down_bias, g.accumulate));
  PLAIT_RETURN_IF_ERROR(gradient("shared gate_up weight", g.shared_gate_up, w.shared_gate_up, g.accumulate));
  PLAIT_RETURN_IF_ERROR(gradient("shared down weight", g.shared_down, w.shared_down, g.accumulate));
  return gradient("shared gate", g.shared_gate, w.shared_gate, g.accumulate);
}

/// x (T,H): any T >= 0, any strides.
Status check_x(const LayerCall& call, const ConstTensorView& x) {
  return require("x", x, call.config.dtype, {x.num_dims > 0 ? x.shape[0] : 0, call.config.hidden});
}

/// The state is that of a forward call with this x, configuration and group.
Status check_state(const LayerCall& call, const ConstTensorView& x, const LayerState& state) {
  if (!state.ids.defined() || state.ids.view.shape[0] != x.shape[0]) {
    return fail("the forward state's ids", state.ids,
                fmt::format("x has {} rows: backward needs the state of the forward call with this x", x.shape[0]));
  }
  if (state.plan.placement().num_ranks != call.group.size() || state.plan.rank() != call.group.rank()) {
    return Status::invalid_argument(fmt::format("layer: the forward state is of rank {} of {}, this is rank {} of {}", state.plan.rank(),
                                                state.plan.placement().num_ranks, call.group.rank(), call.group.size()));
  }
  if (call.config.dispatcher != Dispatcher::automatic && state.dispatcher != call.config.dispatcher) {
    return Status::invalid_argument(fmt::format("layer: the forward call ran with dispatcher {}, backward is asked for {}; use the same in both",
                                                name(state.dispatcher), name(call.config.dispatcher)));
  }
  if (call.config.recompute || state.h.defined()) return {};
  return fail("the forward state's h", state.h, "the forward call ran with recompute; use the same setting in backward");
}

}  // namespace

Status check_forward(const LayerCall& call, const ConstTensorView& x, const TensorView& y, const GivenRouting& given) {
  const LayerConfig& c = call.config;
  PLAIT_RETURN_IF_ERROR(c.validate(call.group.size()));
  PLAIT_RETURN_IF_ERROR(check_weights(call, !given.ids.defined()));
  PLAIT_RETURN_IF_ERROR(check_x(call, x));
  PLAIT_RETURN_IF_ERROR(require_result("y", y, c.dtype, {x.shape[0], c.hidden}));
  if (given.weights.defined() && !given.ids.defined()) return fail("given weights", given.weights, "they need given ids");
  if (!given.ids.defined()) return {};
  PLAIT_RETURN_IF_ERROR(require("given ids", given.ids, DType::i32, {x.shape[0], c.router.top_k}));
  return optional("given weights", given.weights, DType::f32, {x.shape[0], c.router.top_k});
}

Status check_backward(const LayerCall& call, const ConstTensorView& x, const LayerState& state, const ConstTensorView& dy, const TensorView& dx,
                      const LayerGradients& gradients, const TensorView& dweights) {
  const LayerConfig& c = call.config;
  PLAIT_RETURN_IF_ERROR(c.validate(call.group.size()));
  PLAIT_RETURN_IF_ERROR(check_weights(call, state.router_used));
  PLAIT_RETURN_IF_ERROR(check_x(call, x));
  PLAIT_RETURN_IF_ERROR(check_state(call, x, state));
  PLAIT_RETURN_IF_ERROR(require("dy", dy, c.dtype, {x.shape[0], c.hidden}));
  PLAIT_RETURN_IF_ERROR(require_result("dx", dx, c.dtype, {x.shape[0], c.hidden}));
  if (dweights.defined()) PLAIT_RETURN_IF_ERROR(require_result("dweights", dweights, DType::f32, {x.shape[0], c.router.top_k}));
  return check_gradients(call.weights, gradients);
}

}  // namespace plait::moe
