#pragma once
/// What a fused forward keeps for backward of the rows that it read in place, and how they are found again.

#include <cstdint>
#include <memory>
#include <vector>

#include "moe/call.h"
#include "routing/row_access.h"
#include "routing/window_buffer.h"

namespace plait::moe {

struct GatheredTokens;

/// Rows of tokens, (T,H) on every rank, that peers read where they lie.
struct TokenRows {
  WindowBuffer own;
  std::vector<RegionView> views;

  static Result<TokenRows> open(const LayerCall& call, int64_t num_tokens);
  /// Fills the own rows. In a group of one they are read where they are, and nothing is copied.
  void write(LayerCall& call, const ConstTensorView& rows) const;
};

/// The entries that arrived at this rank's experts, expert major.
struct DispatchedRows {
  Tensor tokens;                                   ///< (A) i32: which row of its source's tokens
  Tensor weights;                                  ///< (A,1) f32
  TokenRows x;                                     ///< empty with recompute
  std::shared_ptr<const GatheredTokens> gathered;  ///< allgather only

  /// Places of the entries' rows. `own` is what this rank gave to write().
  RowSource find(const LayerCall& call, const RoutingPlan& plan, const TokenRows& rows, const ConstTensorView& own) const;
};

}  // namespace plait::moe
