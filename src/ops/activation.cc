#include "plait/activation.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "base/status_macros.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_set.h"
#include "ops/dense_rows.h"

namespace plait {
namespace {

constexpr std::array kinds = {
    std::pair(ActivationKind::swiglu, std::string_view("swiglu")),
    std::pair(ActivationKind::swiglu_clamped, std::string_view("swiglu_clamped")),
    std::pair(ActivationKind::geglu_tanh, std::string_view("geglu_tanh")),
    std::pair(ActivationKind::relu2, std::string_view("relu2")),
};

Status check_shapes(const Activation& activation, const ConstTensorView& h, std::string_view act_name, const ConstTensorView& act) {
  if (h.num_dims != 2 || act.num_dims != 2 || !is_floating(h.dtype)) {
    return Status::invalid_argument(
        fmt::format("activation: h is {} and {} is {}; both must be floating matrices", describe(h), act_name, describe(act)));
  }
  if (act.dtype != h.dtype) {
    return Status::invalid_argument(fmt::format("activation: {} is {}, h is {}; they must have one type", act_name, name(act.dtype), name(h.dtype)));
  }
  if (act.shape[0] != h.shape[0] || h.shape[1] != activation.hidden_columns(act.shape[1])) {
    return Status::invalid_argument(
        fmt::format("activation: h has {} rows of {} columns, {} has {} rows of {}; {} needs equal rows and {} columns of h", h.shape[0], h.shape[1],
                    act_name, act.shape[0], act.shape[1], name(activation.kind), activation.hidden_columns(act.shape[1])));
  }
  return {};
}

Status check_same(std::string_view first_name, const ConstTensorView& first, std::string_view other_name, const ConstTensorView& other) {
  if (first.num_dims == other.num_dims && first.shape == other.shape && first.dtype == other.dtype) return {};
  return Status::invalid_argument(
      fmt::format("activation: {} is {}, {} is {}; shapes and types must be equal", first_name, describe(first), other_name, describe(other)));
}

Status check_weights(const ConstTensorView& weights, int64_t num_rows) {
  if (!weights.defined()) return {};
  if (weights.dtype == DType::f32 && weights.num_dims == 1 && weights.shape[0] == num_rows) return {};
  return Status::invalid_argument(fmt::format("activation: weights is {}; it must be f32 ({}), one per row of h", describe(weights), num_rows));
}

}  // namespace

std::string_view name(ActivationKind kind) {
  for (const auto& [value, text] : kinds) {
    if (value == kind) return text;
  }
  return "unknown";
}

Result<ActivationKind> parse_activation(std::string_view text) {
  std::string names;
  for (const auto& [value, known] : kinds) {
    if (known == text) return value;
    names += names.empty() ? "" : ", ";
    names += known;
  }
  return Status::invalid_argument(fmt::format("unknown activation \"{}\"; known: {}", text, names));
}

Status activation_forward(const Context& context, const Activation& activation, const ConstTensorView& h, const TensorView& act) {
  PLAIT_RETURN_IF_ERROR(check_shapes(activation, h, "act", act));
  PLAIT_ASSIGN_OR_RETURN(DenseInput rows, DenseInput::make(context, h));
  PLAIT_ASSIGN_OR_RETURN(DenseOutput out, DenseOutput::make(context, act));
  const kernels::ElementwiseKernels& elementwise = *context.kernels().elementwise;
  for_blocks(context, h.shape[0], (h.shape[1] + act.shape[1]) * size_of(h.dtype), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) elementwise.activation_forward(activation, h.dtype, rows.view.at(i), out.view.at(i), act.shape[1]);
  });
  out.finish(context);
  return {};
}

Status activation_backward(const Context& context, const Activation& activation, const ConstTensorView& h, const ConstTensorView& da,
                           const ConstTensorView& weights, const TensorView& dh, const TensorView& act_w) {
  PLAIT_RETURN_IF_ERROR(check_shapes(activation, h, "da", da));
  PLAIT_RETURN_IF_ERROR(check_same("dh", dh, "h", h));
  if (act_w.defined()) PLAIT_RETURN_IF_ERROR(check_same("act_w", act_w, "da", da));
  PLAIT_RETURN_IF_ERROR(check_weights(weights, h.shape[0]));
  PLAIT_ASSIGN_OR_RETURN(DenseInput h_rows, DenseInput::make(context, h));
  PLAIT_ASSIGN_OR_RETURN(DenseInput da_rows, DenseInput::make(context, da));
  PLAIT_ASSIGN_OR_RETURN(DenseOutput dh_rows, DenseOutput::make(context, dh));
  PLAIT_ASSIGN_OR_RETURN(DenseOutput act_w_rows, DenseOutput::make(context, act_w));
  const kernels::ElementwiseKernels& elementwise = *context.kernels().elementwise;
  int64_t bytes_per_row = 2 * (h.shape[1] + da.shape[1]) * size_of(h.dtype);
  for_blocks(context, h.shape[0], bytes_per_row, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      float weight = weights.defined() ? *weights[i].as<float>() : 1.0F;
      std::byte* act_w_row = act_w.defined() ? act_w_rows.view.at(i) : nullptr;
      elementwise.activation_backward(activation, h.dtype, h_rows.view.at(i), da_rows.view.at(i), weight, dh_rows.view.at(i), act_w_row, da.shape[1]);
    }
  });
  dh_rows.finish(context);
  act_w_rows.finish(context);
  return {};
}

}  // namespace plait
