#include "ops/grouped_matmul_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/status_macros.h"
#include "ops/grouped_matmul_layout.h"

namespace plait::gmm_check {
namespace {

Status fail(std::string_view operation, std::string text) { return Status::invalid_argument(fmt::format("{}: {}", operation, text)); }

}  // namespace

Status operand(std::string_view operation, std::string_view what, const ConstTensorView& view, int num_dims, int first_nonzero) {
  if (view.num_dims != num_dims) return fail(operation, fmt::format("{} is {}; it must have {} dimensions", what, describe(view), num_dims));
  if (!is_floating(view.dtype)) return fail(operation, fmt::format("{} is {}; its type must be f32, bf16 or f16", what, describe(view)));
  for (int d = 0; d < num_dims; ++d) {
    int64_t least = d >= first_nonzero ? 1 : 0;
    if (view.shape[d] < least) {
      return fail(operation, fmt::format("{} is {}; dimension {} is {} and must be at least {}", what, describe(view), d, view.shape[d], least));
    }
  }
  return {};
}

Status same_type(std::string_view operation, std::string_view what, const ConstTensorView& view, std::string_view other_name,
                 const ConstTensorView& other) {
  if (view.dtype == other.dtype) return {};
  return fail(operation,
              fmt::format("{} is {} but {} is {}; both need one type: convert one of them", what, name(view.dtype), other_name, name(other.dtype)));
}

Status result(std::string_view operation, std::string_view what, const ConstTensorView& view, std::initializer_list<int64_t> shape,
              DType operand_type, bool accumulate) {
  bool same_shape = view.num_dims == static_cast<int>(shape.size()) && std::equal(shape.begin(), shape.end(), view.shape.begin());
  if (!same_shape) {
    ConstTensorView expected(static_cast<const void*>(nullptr), view.dtype, shape);
    return fail(operation, fmt::format("{} is {}; the operands' shapes ask for {}", what, describe(view), describe(expected)));
  }
  if (view.dtype != DType::f32 && (accumulate || view.dtype != operand_type)) {
    std::string allowed = accumulate ? "f32, because it is added to" : fmt::format("{} (the operands' type) or f32", name(operand_type));
    return fail(operation, fmt::format("{} is {}; it must be {}", what, name(view.dtype), allowed));
  }
  return gmm_layout::check_result_layout(operation, what, view);
}

Status m_grouped(std::string_view operation, const ConstTensorView& x, const ConstTensorView& weight, const ConstTensorView& bias,
                 const TensorView& y) {
  PLAIT_RETURN_IF_ERROR(operand(operation, "x", x, 2, 1));
  PLAIT_RETURN_IF_ERROR(operand(operation, "weight", weight, 3, 1));
  PLAIT_RETURN_IF_ERROR(same_type(operation, "x", x, "weight", weight));
  if (x.shape[1] != weight.shape[1]) {
    return fail(operation,
                fmt::format("x is {} and weight is {}: x has {} columns, weight {} rows; they must be equal (transpose the weight's view?)",
                            describe(x), describe(weight), x.shape[1], weight.shape[1]));
  }
  if (bias.defined()) {
    bool right = bias.num_dims == 2 && bias.shape[0] == weight.shape[0] && bias.shape[1] == weight.shape[2] &&
                 (bias.dtype == x.dtype || bias.dtype == DType::f32);
    if (!right) {
      return fail(operation,
                  fmt::format("bias is {}; it must be ({}, {}) of {} or f32", describe(bias), weight.shape[0], weight.shape[2], name(x.dtype)));
    }
  }
  PLAIT_RETURN_IF_ERROR(result(operation, "y", y, {x.shape[0], weight.shape[2]}, x.dtype, false));
  PLAIT_RETURN_IF_ERROR(gmm_layout::check_apart(operation, "y", y, "x", x));
  PLAIT_RETURN_IF_ERROR(gmm_layout::check_apart(operation, "y", y, "weight", weight));
  return gmm_layout::check_apart(operation, "y", y, "bias", bias);
}

Status k_grouped(const ConstTensorView& x, const ConstTensorView& dy, const TensorView& dw, bool accumulate) {
  constexpr std::string_view operation = "grouped_matmul_k";
  PLAIT_RETURN_IF_ERROR(operand(operation, "x", x, 2, 1));
  PLAIT_RETURN_IF_ERROR(operand(operation, "dy", dy, 2, 1));
  PLAIT_RETURN_IF_ERROR(same_type(operation, "x", x, "dy", dy));
  if (x.shape[0] != dy.shape[0]) {
    return fail(operation,
                fmt::format("x is {} and dy is {}: {} and {} rows; they must be equal", describe(x), describe(dy), x.shape[0], dy.shape[0]));
  }
  int64_t num_groups = dw.num_dims == 3 ? dw.shape[0] : 1;
  PLAIT_RETURN_IF_ERROR(result(operation, "dw", dw, {num_groups, x.shape[1], dy.shape[1]}, x.dtype, accumulate));
  PLAIT_RETURN_IF_ERROR(gmm_layout::check_apart(operation, "dw", dw, "x", x));
  return gmm_layout::check_apart(operation, "dw", dw, "dy", dy);
}

Status bias_gradient(const ConstTensorView& dy, const TensorView& dbias, bool accumulate) {
  constexpr std::string_view operation = "grouped_bias_gradient";
  PLAIT_RETURN_IF_ERROR(operand(operation, "dy", dy, 2, 1));
  int64_t num_groups = dbias.num_dims == 2 ? dbias.shape[0] : 1;
  PLAIT_RETURN_IF_ERROR(result(operation, "dbias", dbias, {num_groups, dy.shape[1]}, dy.dtype, accumulate));
  return gmm_layout::check_apart(operation, "dbias", dbias, "dy", dy);
}

Status gradients(const ConstTensorView& dy, const ConstTensorView& x, const ConstTensorView& weight, const GroupedMatmulGradients& gradients) {
  constexpr std::string_view operation = "grouped_matmul_backward";
  const auto& [dx, dw, dbias, accumulate] = gradients;
  PLAIT_RETURN_IF_ERROR(operand(operation, "dy", dy, 2, 1));
  PLAIT_RETURN_IF_ERROR(operand(operation, "weight", weight, 3, 1));
  if (dx.defined()) PLAIT_RETURN_IF_ERROR(m_grouped("grouped_matmul_backward, dx = dy * weight^T", dy, weight.transposed(1, 2), {}, dx));
  if (dw.defined()) {
    PLAIT_RETURN_IF_ERROR(k_grouped(x, dy, dw, accumulate));
    PLAIT_RETURN_IF_ERROR(result(operation, "dw", dw, {weight.shape[0], weight.shape[1], weight.shape[2]}, x.dtype, accumulate));
  }
  if (dbias.defined()) {
    PLAIT_RETURN_IF_ERROR(bias_gradient(dy, dbias, accumulate));
    PLAIT_RETURN_IF_ERROR(result(operation, "dbias", dbias, {weight.shape[0], weight.shape[2]}, dy.dtype, accumulate));
  }
  const std::pair<std::string_view, TensorView> results[] = {{"dx", dx}, {"dw", dw}, {"dbias", dbias}};
  for (size_t i = 0; i < std::size(results); ++i) {
    const auto& [what, view] = results[i];
    PLAIT_RETURN_IF_ERROR(gmm_layout::check_apart(operation, what, view, "x", x));
    PLAIT_RETURN_IF_ERROR(gmm_layout::check_apart(operation, what, view, "weight", weight));
    for (size_t j = 0; j < i; ++j) PLAIT_RETURN_IF_ERROR(gmm_layout::check_apart(operation, what, view, results[j].first, results[j].second));
  }
  return {};
}

}  // namespace plait::gmm_check
