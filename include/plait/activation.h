#pragma once
/// swiglu and its variants. docs/operators.md section 4; elementwise functions compute in float32 (docs/numerics.md section 5).

#include <cstdint>
#include <string_view>

#include "plait/context.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait {

enum class ActivationKind : uint8_t {
  swiglu,          ///< silu(gate) * up
  swiglu_clamped,  ///< gpt-oss: gate <= limit, |up| <= limit, (up + 1) * gate * sigmoid(alpha * gate)
  geglu_tanh,      ///< gelu_tanh(gate) * up
  relu2,           ///< relu(h)^2, ungated: I columns
};

struct Activation {
  ActivationKind kind = ActivationKind::swiglu;
  bool interleaved = false;  ///< columns gate, up, gate, up, ... instead of [gate | up]
  float limit = 7.0F;        ///< swiglu_clamped
  float alpha = 1.702F;      ///< swiglu_clamped

  bool gated() const { return kind != ActivationKind::relu2; }
  /// Columns of h for I activation columns: 2I where gated.
  int64_t hidden_columns(int64_t intermediate) const { return gated() ? 2 * intermediate : intermediate; }
};
std::string_view name(ActivationKind kind);
Result<ActivationKind> parse_activation(std::string_view text);

/// act (M,I) = activation(h (M,2I or I)); same floating type; rows of any stride, elements of a row contiguous or strided.
Status activation_forward(const Context& context, const Activation& activation, const ConstTensorView& h, const TensorView& act);

/// dh = activation'(h, da): da (M,I) is the gradient of act. With `weights` (M) float32: the gradient used is round32(weight * da) and
/// act_w (M,I), where defined, receives round(weight * act), as numerics.md section 5 says; a weight of 0 gives rows of +0.
Status activation_backward(const Context& context, const Activation& activation, const ConstTensorView& h, const ConstTensorView& da,
                           const ConstTensorView& weights, const TensorView& dh, const TensorView& act_w);

}  // namespace plait
