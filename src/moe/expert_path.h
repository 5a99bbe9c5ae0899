#pragma once
/// The part of the layer in which dispatchers differ: from tokens and their routing to one result row per entry, and back.

#include <cstdint>
#include <span>

#include "moe/call.h"

namespace plait::moe {

/// Gradients at the home rank, one row per entry, in the order of state.position.
struct EntryGradients {
  Tensor dx;        ///< (B,H)
  Tensor dweights;  ///< (B,1) f32
};

/// A strategy for the expert part. All functions are collective.
struct ExpertPath {
  /// Experts' rows (B,H) of this rank's entries, in the order of state.position. `local_counts` (E): entries per expert. Fills
  /// state.plan and what backward needs.
  Result<Tensor> (*forward)(LayerCall& call, const ConstTensorView& x, std::span<const int64_t> local_counts, LayerState& state);
  /// From dy (T,H), unscaled, to the entries' gradients; writes the gradients of this rank's experts.
  Result<EntryGradients> (*backward)(LayerCall& call, const ConstTensorView& x, const LayerState& state, const ConstTensorView& dy,
                                     const LayerGradients& gradients);
  /// The rows that forward or backward returned may be incomplete until this has returned: work that needs no peer comes before it.
  Status (*finish)(LayerCall& call, Stage stage);
};

extern const ExpertPath alltoall_path, mc2_path;

/// The strategy of a dispatcher. Error: unavailable, naming those that this build has.
Result<const ExpertPath*> expert_path(Dispatcher dispatcher);

}  // namespace plait::moe
