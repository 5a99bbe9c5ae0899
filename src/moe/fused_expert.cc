#include "plait/fused_expert.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "ops/dense_rows.h"
#include "routing/fused_call.h"

namespace plait {
namespace {

Status fail(const std::string& text) { return Status::invalid_argument("mc2_fused_expert: " + text); }

/// A matrix of all rows: leading dimensions as one.
Result<DenseInput> flattened(const Context& context, const ConstTensorView& view) {
  if (view.num_dims <= 2) return DenseInput{{}, view};
  const int last = view.num_dims - 1;
  const int64_t num_rows = view.num_elements() == 0 ? 0 : view.num_elements() / view.shape[last];
  ConstTensorView flat(view.data, view.dtype, {num_rows, view.shape[last]});
  flat.strides = {view.strides[last - 1], view.strides[last]};
  bool dense = true;
  for (int d = 0; d < last - 1; ++d) dense = dense && (view.shape[d] == 1 || view.strides[d] == view.strides[d + 1] * view.shape[d + 1]);
  if (dense || num_rows == 0) return DenseInput{{}, flat};
  PLAIT_ASSIGN_OR_RETURN(const Tensor copy, context.empty(view.dtype, {num_rows, view.shape[last]}));
  const int64_t outer = view.num_dims == 4 ? view.shape[0] : 1, middle = view.shape[last - 2], rows = view.shape[last - 1];
  for (int64_t i = 0; i < outer * middle; ++i) {
    copy_elements(context, view.num_dims == 4 ? view[i / middle][i % middle] : view[i], copy.view.slice(i * rows, (i + 1) * rows));
  }
  return DenseInput{copy, copy};
}

/// A matrix in the shape of `like`.
Tensor in_shape_of(const Tensor& matrix, const ConstTensorView& like) {
  Tensor shaped = matrix;
  shaped.view.num_dims = like.num_dims;
  shaped.view.shape = like.shape;
  int64_t stride = 1;
  for (int d = like.num_dims - 1; d >= 0; --d) {
    shaped.view.strides[static_cast<size_t>(d)] = stride;
    stride *= like.shape[static_cast<size_t>(d)];
  }
  return shaped;
}

/// [gate | up] where both are halves of one matrix per expert, else undefined.
template <typename View>
View side_by_side(const View& gate, const View& up) {
  if (gate.strides != up.strides || gate.data + gate.shape[2] * gate.strides[2] * size_of(gate.dtype) != up.data) return {};
  View both = gate;
  both.shape[2] *= 2;
  return both;
}

/// Copies between (e,H,2I) and its halves.
template <typename From, typename To>
void copy_experts(const Context& context, const From& from, const To& to) {
  for (int64_t j = 0; j < from.shape[0]; ++j) copy_elements(context, from[j], to[j]);
}
TensorView columns(const TensorView& matrix, int64_t begin, int64_t count) {
  TensorView part = matrix;
  part.data += begin * matrix.strides[2] * size_of(matrix.dtype);
  part.shape[2] = count;
  return part;
}

Result<Tensor> joined(const Context& context, const ConstTensorView& gate, const ConstTensorView& up) {
  PLAIT_ASSIGN_OR_RETURN(Tensor both, context.empty(up.dtype, {up.shape[0], up.shape[1], 2 * up.shape[2]}));
  copy_experts(context, gate, columns(both, 0, up.shape[2]));
  copy_experts(context, up, columns(both, up.shape[2], up.shape[2]));
  return both;
}

/// One call of either function: the configuration that the operands ask for, and this rank's part of the weights.
struct Call {
  const Context& context;
  Group& group;
  LayerConfig config;
  ConstTensorView up, gate, down;
  int64_t first = 0;  ///< this rank's first expert in the given weights

  template <typename View>
  View own(const View& view) const {
    return view.defined() ? view.slice(first, first + config.router.num_experts / group.size()) : view;
  }
  /// The layer's weights; `memory` holds gate_up where it had to be joined.
  Result<LayerWeights> layer_weights(Tensor& memory) const;
};

Status check_shapes(const ConstTensorView& x, const FusedExpertWeights& w, int64_t top_k, const FusedExpertOptions& options) {
  if (x.num_dims < 2) return fail(fmt::format("x is {}; it must have 2 to 4 dimensions", describe(x)));
  if (w.up.num_dims != 3 || w.down.num_dims != 3) {
    return fail(fmt::format("weights up are {} and down {}; both need 3 dimensions", describe(w.up), describe(w.down)));
  }
  if (w.gate.defined() != options.activation.gated()) {
    return fail(fmt::format("activation {} {} a gate weight", name(options.activation.kind), options.activation.gated() ? "needs" : "has no"));
  }
  if (options.activation.interleaved) return fail("interleaved columns are of one gate_up weight; separate weights mean [gate | up]");
  const bool same = w.gate.num_dims == 3 && w.gate.shape == w.up.shape && w.gate.dtype == w.up.dtype;
  if (w.gate.defined() && !same) {
    return fail(fmt::format("weights gate are {} and up {}; both need one shape and type", describe(w.gate), describe(w.up)));
  }
  if (w.down.shape[0] != w.up.shape[0]) {
    return fail(fmt::format("weights down are of {} experts and up of {}; they must be equal", w.down.shape[0], w.up.shape[0]));
  }
  return top_k >= 1 ? Status() : fail("expert ids need at least one column");
}

/// One item (or row of items) per row of x, whatever its last dimension.
Status check_leading(std::string_view what, const ConstTensorView& view, const ConstTensorView& x) {
  if (!view.defined() || (view.num_dims == x.num_dims && std::equal(x.shape.begin(), x.shape.begin() + x.num_dims - 1, view.shape.begin())))
    return {};
  return fail(fmt::format("{} is {} and x is {}; all dimensions but the last must be equal", what, describe(view), describe(x)));
}

Status prepare(Call& call, const ConstTensorView& x, const FusedExpertWeights& w, int64_t top_k, const FusedExpertOptions& options) {
  PLAIT_RETURN_IF_ERROR(check_shapes(x, w, top_k, options));
  const int64_t given = w.up.shape[0], num_ranks = call.group.size();
  const int64_t num_experts = options.num_experts > 0 ? options.num_experts : given * num_ranks;
  if (given != num_experts && given * num_ranks != num_experts) {
    return fail(fmt::format("weights of {} experts are given; {} experts on {} ranks need {} or all {}", given, num_experts, num_ranks,
                            num_experts / num_ranks, num_experts));
  }
  if (num_experts % num_ranks == 0 && given == num_experts) call.first = call.group.rank() * (num_experts / num_ranks);
  LayerConfig& config = call.config;
  config.hidden = x.shape[static_cast<size_t>(x.num_dims - 1)];
  config.intermediate = w.up.shape[2];
  config.dtype = w.up.dtype;
  config.router = {.num_experts = num_experts, .top_k = top_k};
  config.sentinel = options.sentinel;
  config.activation = options.activation;
  config.dispatcher = options.dispatcher;
  config.recompute = options.recompute;
  PLAIT_RETURN_IF_ERROR(config.validate(call.group.size()));
  call.up = call.own(w.up);
  call.gate = call.own(w.gate);
  call.down = call.own(w.down);
  return {};
}

Result<LayerWeights> Call::layer_weights(Tensor& memory) const {
  LayerWeights weights;
  weights.down = down;
  weights.gate_up = gate.defined() ? side_by_side(gate, up) : up;
  if (weights.gate_up.defined()) return weights;
  if (!memory.defined()) {
    PLAIT_ASSIGN_OR_RETURN(memory, joined(context, gate, up));
  }
  weights.gate_up = memory;
  return weights;
}

Result<FusedExpertResult> forward(Call& call, const ConstTensorView& x, const FusedExpertWeights& w, const ConstTensorView& ids,
                                  const ConstTensorView& expert_weights, const FusedExpertOptions& options) {
  const int64_t top_k = ids.num_dims > 0 ? ids.shape[static_cast<size_t>(ids.num_dims - 1)] : 0;
  PLAIT_RETURN_IF_ERROR(prepare(call, x, w, top_k, options));
  PLAIT_RETURN_IF_ERROR(check_leading("expert_ids", ids, x));
  PLAIT_RETURN_IF_ERROR(check_leading("expert_weights", expert_weights, x));
  PLAIT_ASSIGN_OR_RETURN(const DenseInput rows, flattened(call.context, x));
  PLAIT_ASSIGN_OR_RETURN(const DenseInput flat_ids, flattened(call.context, ids));
  PLAIT_ASSIGN_OR_RETURN(const DenseInput flat_weights, flattened(call.context, expert_weights));
  FusedExpertResult result;
  PLAIT_ASSIGN_OR_RETURN(const LayerWeights weights, call.layer_weights(result.state.gate_up));
  PLAIT_ASSIGN_OR_RETURN(const Tensor y, call.context.empty(call.config.dtype, {rows.view.shape[0], call.config.hidden}));
  PLAIT_ASSIGN_OR_RETURN(result.state.layer, layer_forward(call.context, call.group, call.config, weights, rows.view, y,
                                                           {.ids = flat_ids.view, .weights = flat_weights.view}));
  result.y = in_shape_of(y, x);
  return result;
}

/// Where the layer writes the gradient of [gate | up]: the halves' own memory where they are one matrix, else room for both.
struct JoinedGradient {
  Tensor memory;
  TensorView view, gate, up;

  static Result<JoinedGradient> open(const Call& call, const FusedExpertGradients& gradients);
  void finish(const Context& context) const {
    if (!memory.defined()) return;
    copy_experts(context, columns(memory, 0, up.shape[2]), gate);
    copy_experts(context, columns(memory, up.shape[2], up.shape[2]), up);
  }
};

Result<JoinedGradient> JoinedGradient::open(const Call& call, const FusedExpertGradients& gradients) {
  JoinedGradient joint{{}, {}, call.own(gradients.gate), call.own(gradients.up)};
  if (!call.gate.defined() || !joint.up.defined()) {
    joint.view = joint.up;
    return joint;
  }
  joint.view = side_by_side(joint.gate, joint.up);
  if (joint.view.defined()) return joint;
  // What is added to takes part from the beginning, so that an expert without rows keeps its bits.
  PLAIT_ASSIGN_OR_RETURN(joint.memory, joined(call.context, joint.gate, joint.up));
  joint.view = joint.memory;
  return joint;
}

Status check_gradient(std::string_view what, const TensorView& gradient, const ConstTensorView& weight) {
  if (!gradient.defined() || (gradient.num_dims == weight.num_dims && gradient.shape == weight.shape)) return {};
  return fail(fmt::format("the gradient of {} is {}; it must have the weight's shape, {}", what, describe(gradient), describe(weight)));
}

Status check_gradients(const FusedExpertWeights& w, const FusedExpertGradients& g) {
  PLAIT_RETURN_IF_ERROR(check_gradient("up", g.up, w.up));
  PLAIT_RETURN_IF_ERROR(check_gradient("gate", g.gate, w.gate));
  PLAIT_RETURN_IF_ERROR(check_gradient("down", g.down, w.down));
  if (w.gate.defined() && (g.up.defined() != g.gate.defined() || g.up.dtype != g.gate.dtype)) {
    return fail("the gradients of gate and up are computed together: give both, of one type, or none");
  }
  return {};
}

Result<Tensor> backward(Call& call, const ConstTensorView& x, const FusedExpertWeights& w, const FusedExpertState& state, const ConstTensorView& dy,
                        const FusedExpertGradients& gradients, const FusedExpertOptions& options) {
  const int64_t top_k = state.layer.ids.defined() ? state.layer.ids.view.shape[1] : 0;
  PLAIT_RETURN_IF_ERROR(prepare(call, x, w, top_k, options));
  PLAIT_RETURN_IF_ERROR(check_leading("dy", dy, x));
  PLAIT_RETURN_IF_ERROR(check_gradients(w, gradients));
  PLAIT_ASSIGN_OR_RETURN(const DenseInput rows, flattened(call.context, x));
  PLAIT_ASSIGN_OR_RETURN(const DenseInput flat_dy, flattened(call.context, dy));
  Tensor gate_up = state.gate_up;
  PLAIT_ASSIGN_OR_RETURN(const LayerWeights weights, call.layer_weights(gate_up));
  PLAIT_ASSIGN_OR_RETURN(const JoinedGradient joint, JoinedGradient::open(call, gradients));
  LayerGradients to;
  to.gate_up = joint.view;
  to.down = call.own(gradients.down);
  to.accumulate = gradients.accumulate;
  PLAIT_ASSIGN_OR_RETURN(const Tensor dx, call.context.empty(call.config.dtype, {rows.view.shape[0], call.config.hidden}));
  PLAIT_RETURN_IF_ERROR(
      layer_backward(call.context, call.group, call.config, weights, rows.view, state.layer, flat_dy.view, dx, to, gradients.expert_weights));
  joint.finish(call.context);
  return in_shape_of(dx, x);
}

/// Where the layer failed, it has stopped the group itself.
Status stopped(Group& group, std::string_view operation, const Status& status) {
  return group.health().ok() ? stop_group(group, operation, Stage::other, "", status) : status;
}

}  // namespace

Result<FusedExpertResult> mc2_fused_expert(const Context& context, Group& group, const ConstTensorView& x, const FusedExpertWeights& weights,
                                           const ConstTensorView& expert_ids, const ConstTensorView& expert_weights,
                                           const FusedExpertOptions& options) {
  Call call{context, group, {}, {}, {}, {}};
  Result<FusedExpertResult> result = forward(call, x, weights, expert_ids, expert_weights, options);
  if (result.ok()) return result;
  return stopped(group, "mc2_fused_expert", result.status());
}

Result<Tensor> mc2_fused_expert_backward(const Context& context, Group& group, const ConstTensorView& x, const FusedExpertWeights& weights,
                                         const FusedExpertState& state, const ConstTensorView& dy, const FusedExpertGradients& gradients,
                                         const FusedExpertOptions& options) {
  Call call{context, group, {}, {}, {}, {}};
  Result<Tensor> dx = backward(call, x, weights, state, dy, gradients, options);
  if (dx.ok()) return dx;
  return stopped(group, "mc2_fused_expert_backward", dx.status());
}

}  // namespace plait
