#pragma once
/// The shared expert: an ordinary MLP over this rank's tokens, scaled by sigmoid(x . w) where the model has a gate. It needs no peer.

#include "moe/call.h"

namespace plait::moe {

/// Its rows (T,H), before the gate; the gate's values are in state.shared_scale. Undefined without a shared expert.
Result<Tensor> shared_expert_forward(LayerCall& call, const ConstTensorView& x, LayerState& state);

/// Its gradients, and its part of dx (T,H). Undefined without a shared expert.
Result<Tensor> shared_expert_backward(LayerCall& call, const ConstTensorView& x, const LayerState& state, const ConstTensorView& dy,
                                      const LayerGradients& gradients);

}  // namespace plait::moe
