#pragma once
/// The router: scores, top-k choice, weights, auxiliary losses and their gradients. docs/operators.md section 1.

#include <cstdint>
#include <string_view>

#include "plait/context.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait {

enum class ScoreFunction : uint8_t { softmax, sigmoid, topk_softmax };
std::string_view name(ScoreFunction score);
Result<ScoreFunction> parse_score_function(std::string_view text);

struct RouterConfig {
  int64_t num_experts = 0;
  int64_t top_k = 0;
  ScoreFunction score = ScoreFunction::softmax;
  bool norm_topk = false;
  float scaling = 1.0F;
  int64_t n_group = 1;            ///< equal groups of experts; 1 = no group limit
  int64_t topk_group = 1;         ///< how many groups take part
  float aux_loss = 0.0F;          ///< coefficient of E * sum_g f_g * P_g
  bool aux_loss_times_k = false;  ///< transformers' scale: k times that
  float z_loss = 0.0F;            ///< coefficient of mean(logsumexp^2)

  /// k <= E, E % n_group == 0, k <= topk_group * E / n_group, ...: errors name both numbers and the rule.
  Status validate() const;
};

/// Where routing went. `load_balancing` and `z` are the plain losses, before their coefficients; 0 for 0 tokens.
struct RouterLosses {
  float load_balancing = 0;
  float z = 0;
};

/// logits (T,E) f32, bf16 or f16; bias (E) f32 or undefined (steers the choice only; topk_softmax: choice by logit + bias)
/// -> ids (T,k) i32, weights (T,k) f32, scores (T,E) f32 (what backward needs). Ids in descending order of the choice value, ties to the smaller id.
/// Errors: NaN or +inf logits, or a row of -inf only, naming token (and `rank` >= 0).
Result<RouterLosses> route(const Context& context, const RouterConfig& config, const ConstTensorView& logits, const ConstTensorView& bias,
                           const TensorView& ids, const TensorView& weights, const TensorView& scores, int rank = -1);

/// dlogits (T,E) (type of logits, rounded once, or f32) from dweights (T,k) f32 (undefined: zeros) and the auxiliary losses, whose
/// gradient is scaled by config's coefficients times `loss_scale`.
Status route_backward(const Context& context, const RouterConfig& config, const ConstTensorView& logits, const ConstTensorView& scores,
                      const ConstTensorView& ids, const ConstTensorView& weights, const ConstTensorView& dweights, float loss_scale,
                      const TensorView& dlogits);

}  // namespace plait
