#pragma once
/// What the fused forward and backward have in common: blocks of rows as chains of tiles.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "moe/call.h"
#include "moe/fused_tiles.h"
#include "ops/matmul_tiles.h"

namespace plait::moe {

/// A block's rows in pieces for elementwise work: one where one thread does it all.
struct RowPieces {
  RowPieces(const ExpertBlock& block, int threads)
      : block_(block), count_(threads == 1 ? 1 : std::clamp<int64_t>(block.num_rows() / least_rows, 1, int64_t{2} * threads)) {}
  int64_t count() const { return count_; }
  /// In expert-major order.
  int64_t begin(int64_t piece) const { return block_.first_row + block_.row_begin + block_.num_rows() * piece / count_; }
  int64_t end(int64_t piece) const { return begin(piece + 1); }

 private:
  static constexpr int64_t least_rows = 16;
  const ExpertBlock& block_;
  int64_t count_;
};

/// A chain without steps for one block.
inline TileChain chain_of(const RoutingPlan& plan, const ExpertBlock& block) {
  TileChain chain;
  chain.sources = block.sources;
  chain.expert = static_cast<int32_t>(plan.placement().global(plan.rank(), block.local_expert));
  chain.row_begin = block.row_begin;
  chain.row_end = block.row_end;
  return chain;
}

/// Runs the scheduler; where it fails, the state of the tiles is kept for the dump.
Status run_scheduler(LayerCall& call, TileScheduler& scheduler, const FusedSignals& signals, const TileScheduler::RunTile& run_tile);

}  // namespace plait::moe
