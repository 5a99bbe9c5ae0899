#pragma once
/// What the router refuses: shapes, types, ids, and logits that no choice can be made from.

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "plait/router.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait::router_check {

Status forward_shapes(const RouterConfig& config, const ConstTensorView& logits, const ConstTensorView& bias, const ConstTensorView& ids,
                      const ConstTensorView& weights, const ConstTensorView& scores);
Status backward_shapes(const RouterConfig& config, const ConstTensorView& logits, const ConstTensorView& scores, const ConstTensorView& ids,
                       const ConstTensorView& weights, const ConstTensorView& dweights, const ConstTensorView& dlogits);

/// The bias (E) as a dense row, empty where undefined. NaN and +inf are errors naming the expert; -inf puts an expert last in the choice.
Result<std::vector<float>> choice_bias(const ConstTensorView& bias);

/// Entries per expert. An id outside [0, num_experts) is an error naming token, slot and value.
Result<std::vector<int64_t>> count_ids(const ConstTensorView& ids, int64_t num_experts);

/// False for a row with NaN or +inf.
inline bool below_infinity(const float* logits, int64_t n) {
  constexpr int64_t lanes = 16;  // plain loops over lanes become vector code
  int32_t at_fault[lanes] = {};
  int64_t j = 0;
  for (; j + lanes <= n; j += lanes) {
    for (int64_t l = 0; l < lanes; ++l) at_fault[l] |= logits[j + l] < std::numeric_limits<float>::infinity() ? 0 : 1;
  }
  for (; j < n; ++j) at_fault[0] |= logits[j] < std::numeric_limits<float>::infinity() ? 0 : 1;
  int32_t any = 0;
  for (int32_t lane : at_fault) any |= lane;
  return any == 0;
}
/// Why a row is not routable, and what to do.
std::string describe_fault(std::span<const float> logits);

}  // namespace plait::router_check
