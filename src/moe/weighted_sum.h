#pragma once
/// The last step of both directions: a token's rows become one. docs/numerics.md sections 4 and 5.

#include "moe/call.h"
#include "moe/home_rows.h"
#include "moe/rows.h"

namespace plait::moe {

/// y = round(S + s * shared): S the weighted tree over the experts' rows; `shared` (T,H) and its gate may be undefined.
Status weighted_sum(LayerCall& call, const LayerState& state, const HomeRows& rows, const ConstTensorView& shared, const TensorView& y);

/// dx = round((S + dx_router) + dx_shared): S the tree over the experts' dx rows, without weights; the other two may be undefined.
Status sum_input_gradients(LayerCall& call, const LayerState& state, const HomeRows& rows, const ConstTensorView& dx_router,
                           const ConstTensorView& dx_shared, const TensorView& dx);

}  // namespace plait::moe
