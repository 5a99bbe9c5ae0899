#include "ops/router_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"

namespace plait::router_check {
namespace {

/// One expected tensor: its shape, and the element type.
Status check_tensor(std::string_view what, const ConstTensorView& view, DType dtype, std::initializer_list<int64_t> shape) {
  bool same = view.dtype == dtype && view.num_dims == static_cast<int>(shape.size()) && std::equal(shape.begin(), shape.end(), view.shape.begin());
  if (same) return {};
  ConstTensorView expected(static_cast<const void*>(nullptr), dtype, shape);
  return Status::invalid_argument(fmt::format("router: {} is {}; it must be {}", what, describe(view), describe(expected)));
}

Status check_optional(std::string_view what, const ConstTensorView& view, DType dtype, std::initializer_list<int64_t> shape) {
  return view.defined() ? check_tensor(what, view, dtype, shape) : Status();
}

Status check_logits(const RouterConfig& config, const ConstTensorView& logits) {
  if (is_floating(logits.dtype) && logits.num_dims == 2 && logits.shape[1] == config.num_experts) return {};
  return Status::invalid_argument(
      fmt::format("router: logits are {}; they must be (T, num_experts = {}) of f32, bf16 or f16", describe(logits), config.num_experts));
}

}  // namespace

Status forward_shapes(const RouterConfig& config, const ConstTensorView& logits, const ConstTensorView& bias, const ConstTensorView& ids,
                      const ConstTensorView& weights, const ConstTensorView& scores) {
  PLAIT_RETURN_IF_ERROR(check_logits(config, logits));
  int64_t num_tokens = logits.shape[0];
  PLAIT_RETURN_IF_ERROR(check_optional("the choice bias", bias, DType::f32, {config.num_experts}));
  PLAIT_RETURN_IF_ERROR(check_tensor("ids", ids, DType::i32, {num_tokens, config.top_k}));
  PLAIT_RETURN_IF_ERROR(check_tensor("weights", weights, DType::f32, {num_tokens, config.top_k}));
  return check_optional("scores", scores, DType::f32, {num_tokens, config.num_experts});
}

Status backward_shapes(const RouterConfig& config, const ConstTensorView& logits, const ConstTensorView& scores, const ConstTensorView& ids,
                       const ConstTensorView& weights, const ConstTensorView& dweights, const ConstTensorView& dlogits) {
  PLAIT_RETURN_IF_ERROR(check_logits(config, logits));
  int64_t num_tokens = logits.shape[0];
  PLAIT_RETURN_IF_ERROR(check_tensor("scores", scores, DType::f32, {num_tokens, config.num_experts}));
  PLAIT_RETURN_IF_ERROR(check_tensor("ids", ids, DType::i32, {num_tokens, config.top_k}));
  PLAIT_RETURN_IF_ERROR(check_tensor("weights", weights, DType::f32, {num_tokens, config.top_k}));
  PLAIT_RETURN_IF_ERROR(check_optional("dweights", dweights, DType::f32, {num_tokens, config.top_k}));
  DType expected = dlogits.dtype == DType::f32 ? DType::f32 : logits.dtype;
  return check_tensor("dlogits", dlogits, expected, {num_tokens, config.num_experts});
}

Result<std::vector<float>> choice_bias(const ConstTensorView& bias) {
  std::vector<float> row;
  if (!bias.defined()) return row;
  for (int64_t g = 0; g < bias.shape[0]; ++g) {
    float value = *reinterpret_cast<const float*>(bias.at(g));
    if (!(value < std::numeric_limits<float>::infinity())) {
      return Status::invalid_argument(
                 fmt::format("router: the choice bias of expert {} is {}; it must be finite, or -inf to put the expert last", g, value))
          .at_expert(static_cast<int>(g));
    }
    row.push_back(value);
  }
  return row;
}

Result<std::vector<int64_t>> count_ids(const ConstTensorView& ids, int64_t num_experts) {
  std::vector<int64_t> counts(static_cast<size_t>(num_experts));
  for (int64_t t = 0; t < ids.shape[0]; ++t) {
    for (int64_t slot = 0; slot < ids.shape[1]; ++slot) {
      int32_t id = *reinterpret_cast<const int32_t*>(ids.at(t, slot));
      if (id < 0 || id >= num_experts) {
        return Status::invalid_argument(
            fmt::format("router: the expert id of token {}, slot {} is {}; it must be in [0, {})", t, slot, id, num_experts));
      }
      ++counts[static_cast<size_t>(id)];
    }
  }
  return counts;
}

std::string describe_fault(std::span<const float> logits) {
  for (size_t j = 0; j < logits.size(); ++j) {
    if (logits[j] < std::numeric_limits<float>::infinity()) continue;
    return fmt::format("the logit of expert {} is {}; logits must be finite or -inf: look for overflow in the layers before the router", j,
                       std::isnan(logits[j]) ? "NaN" : "+inf");
  }
  bool nothing_left = std::all_of(logits.begin(), logits.end(), [](float v) { return std::isinf(v); });
  return nothing_left ? "every logit is -inf; at least one expert must be allowed"
                      : "every chosen expert has a logit of -inf, because the choice bias puts all others last; no softmax over them exists";
}

}  // namespace plait::router_check
