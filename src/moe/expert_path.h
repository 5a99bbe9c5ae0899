#pragma once
/// The part of the layer in which dispatchers differ: from tokens and their routing to one result row per entry, and back.

#include <cstdint>
#include <span>

#include "moe/call.h"
#include "moe/home_rows.h"

namespace plait::moe {

/// Gradients at the home rank.
struct EntryGradients {
  HomeRows dx;
  Tensor dweights;  ///< (B,1) f32, one per entry in the order of state.position
};

/// A strategy for the expert part. All functions are collective.
struct ExpertPath {
  /// The experts' rows of this rank's entries. `local_counts` (E): entries per expert. Fills state.plan and what backward needs.
  Result<HomeRows> (*forward)(LayerCall& call, const ConstTensorView& x, std::span<const int64_t> local_counts, LayerState& state);
  /// From dy (T,H), unscaled, to the entries' gradients; writes the gradients of this rank's experts.
  Result<EntryGradients> (*backward)(LayerCall& call, const ConstTensorView& x, const LayerState& state, const ConstTensorView& dy,
                                     const LayerGradients& gradients);
  /// The rows that forward or backward returned may be incomplete until this has returned: work that needs no peer comes before it.
  Status (*finish)(LayerCall& call, const RoutingPlan& plan, Stage stage);
};

extern const ExpertPath alltoall_path, allgather_path, mc2_path;

/// `finish` of the fused dispatchers: every peer has written the rows that this rank waits for.
Status await_results(LayerCall& call, const RoutingPlan& plan, Stage stage);

/// The strategy of a dispatcher; auto is resolved before.
const ExpertPath& expert_path(Dispatcher dispatcher);

}  // namespace plait::moe
