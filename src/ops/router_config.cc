#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "base/status_macros.h"
#include "plait/router.h"

namespace plait {
namespace {

constexpr ScoreFunction score_functions[] = {ScoreFunction::softmax, ScoreFunction::sigmoid, ScoreFunction::topk_softmax};

Status check_range(std::string_view what, int64_t value, int64_t low, int64_t high, std::string_view rule) {
  if (value >= low && value <= high) return {};
  return Status::invalid_argument(fmt::format("router: {} = {} is outside [{}, {}]: {}", what, value, low, high, rule));
}

Status check_coefficient(std::string_view what, float value) {
  if (std::isfinite(value) && value >= 0) return {};
  return Status::invalid_argument(fmt::format("router: {} = {} must be a finite number, 0 (off) or greater", what, value));
}

}  // namespace

std::string_view name(ScoreFunction score) {
  switch (score) {
    case ScoreFunction::softmax:
      return "softmax";
    case ScoreFunction::sigmoid:
      return "sigmoid";
    case ScoreFunction::topk_softmax:
      return "topk_softmax";
  }
  return "unknown";
}

Result<ScoreFunction> parse_score_function(std::string_view text) {
  for (ScoreFunction score : score_functions) {
    if (text == name(score)) return score;
  }
  return Status::invalid_argument(fmt::format("score function '{}' is unknown; allowed: softmax, sigmoid, topk_softmax", text));
}

Status RouterConfig::validate() const {
  PLAIT_RETURN_IF_ERROR(check_range("num_experts", num_experts, 1, std::numeric_limits<int32_t>::max(), "expert ids are int32"));
  PLAIT_RETURN_IF_ERROR(check_range("top_k", top_k, 1, num_experts, fmt::format("a token chooses among {} experts", num_experts)));
  PLAIT_RETURN_IF_ERROR(check_range("n_group", n_group, 1, num_experts, "a group has at least one expert"));
  if (num_experts % n_group != 0) {
    return Status::invalid_argument(
        fmt::format("router: num_experts = {} is not divisible by n_group = {}: groups of experts are equal", num_experts, n_group));
  }
  PLAIT_RETURN_IF_ERROR(check_range("topk_group", topk_group, 1, n_group, "it says how many of the groups take part"));
  int64_t reachable = topk_group * (num_experts / n_group);
  if (top_k > reachable) {
    return Status::invalid_argument(fmt::format("router: top_k = {} is more than the {} experts of topk_group = {} groups of {}; raise topk_group",
                                                top_k, reachable, topk_group, num_experts / n_group));
  }
  if (!std::isfinite(scaling)) return Status::invalid_argument(fmt::format("router: scaling = {} must be finite", scaling));
  PLAIT_RETURN_IF_ERROR(check_coefficient("aux_loss", aux_loss));
  return check_coefficient("z_loss", z_loss);
}

}  // namespace plait
