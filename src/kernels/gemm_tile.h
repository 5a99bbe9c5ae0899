#pragma once
/// One tile of a grouped product on one thread, with a tier's kernels: blocking, packing, prefetching.

#include "kernels/gemm_kernels.h"
#include "kernels/grouped_gemm.h"

namespace plait::kernels {

/// Scratch memory, in floats, that a tile of `problem` up to `limits` needs.
int64_t scratch_floats(const MGroupedGemm& problem, const TileLimits& limits);
int64_t scratch_floats(const KGroupedGemm& problem, const TileLimits& limits);

/// Runs a tile. `next`, where not null, is a tile whose first weights are fetched meanwhile. FloatMode must be set.
void run_tile(const GemmKernels& kernels, const MGroupedGemm& problem, const TileLimits& limits, const Tile& tile, const NextTile* next,
              float* scratch);
/// `stretch` where not null: only those rows.
void run_tile(const GemmKernels& kernels, const KGroupedGemm& problem, const TileLimits& limits, const Tile& tile, const RowStretch* stretch,
              float* scratch);

}  // namespace plait::kernels
