#pragma once
/// From tokens to expert ids, weights and places in the permuted order, and the gradients back through the router.

#include <cstdint>
#include <vector>

#include "moe/call.h"
#include "moe/rows.h"

namespace plait::moe {

/// Fills ids, weights, position and, where the router decides, logits, scores and losses. Returns the entries per expert (E).
Result<std::vector<int64_t>> route_tokens(LayerCall& call, const ConstTensorView& x, const GivenRouting& given, LayerState& state);

/// `entry_dweights` (B,1) in the order of state.position. Writes dweights (T,k), where defined, and the router's gradients; returns
/// dx_router (T,H), rounded to the type of x; undefined where routing was given.
Result<DenseInput> route_tokens_backward(LayerCall& call, const ConstTensorView& x, const LayerState& state, const ConstTensorView& entry_dweights,
                                         const LayerGradients& gradients, const TensorView& dweights, float loss_scale);

}  // namespace plait::moe
