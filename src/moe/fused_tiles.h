#pragma once
/// The expert part of the layer as tiles over rows that lie anywhere: what the fused dispatchers run between publishing their rows and
/// summing the results. docs/numerics.md section 5.

#include <cstdint>

#include "moe/call.h"
#include "routing/fused_call.h"
#include "routing/row_access.h"

namespace plait::moe {

/// x rows -> h -> act -> result rows.
struct FusedForward {
  kernels::Rows x;
  kernels::MutableRows results;
  TensorView h;  ///< (A,2I)
};
Status run_tiles(LayerCall& call, const RoutingPlan& plan, const FusedForward& rows, const FusedSignals& signals);

/// dy rows -> g -> dh, act_w, dweights -> dx rows; then the weight gradients, while the dx rows' readers go on.
struct FusedBackward {
  kernels::Rows x, dy;
  kernels::MutableRows dx, dweights;
  const float* weights = nullptr;  ///< (A)
  TensorView h;                    ///< (A,2I): given, or with recompute room for it
  TensorView g;                    ///< (A,I): room; holds act_w in the end
  TensorView dh;                   ///< (A,2I): room
};
Status run_tiles(LayerCall& call, const RoutingPlan& plan, const FusedBackward& rows, const LayerGradients& gradients, const FusedSignals& signals);

}  // namespace plait::moe
