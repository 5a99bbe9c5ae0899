#pragma once
/// Rows that came home from the experts, as terms of each token's sum.

#include <cstdint>
#include <memory>
#include <vector>

#include "moe/parcels.h"
#include "ops/weighted_tree.h"
#include "plait/layer.h"

namespace plait::moe {

/// One row per entry, in the order of LayerState::position; or, where `parcels` is set, rows and sums as the parcels say.
struct HomeRows {
  Tensor rows;  ///< (B,H), or (parcels' rows, H)
  std::shared_ptr<const ParcelPlan> parcels;
  Tensor sums;  ///< (parcels' sums, H) f32

  /// The present terms of a token, `weighted` or plain.
  void terms(const LayerState& state, int64_t token, bool weighted, std::vector<TreeTerm>& terms) const;

 private:
  void parcel_terms(const LayerState& state, int64_t token, bool weighted, std::vector<TreeTerm>& terms) const;
};

}  // namespace plait::moe
