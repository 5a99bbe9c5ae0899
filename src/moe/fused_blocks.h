#pragma once
/// What the fused forward and backward have in common.

#include "moe/call.h"
#include "moe/fused_tiles.h"
#include "ops/matmul_tiles.h"
#include "routing/fused_call.h"
#include "routing/tile_scheduler.h"

namespace plait::moe {

/// Runs a task of `tiles`; the weights that `next_tiles` needs for `next` will probably come after it.
inline void run_before(const MatmulTiles& tiles, const ExpertBlock& block, const TileScheduler::TileAt& at, const MatmulTiles& next_tiles,
                       const ExpertBlock& next) {
  const kernels::NextTile hint = next_tiles.first_tile(next);
  tiles.run(block, at.tile, at.worker, &hint);
}

/// Runs the scheduler; where it fails, the state of the tiles is kept for the dump.
Status run_scheduler(LayerCall& call, TileScheduler& scheduler, const FusedSignals& signals, const TileScheduler::RunTile& run_tile);

}  // namespace plait::moe
