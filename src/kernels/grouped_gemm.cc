#include "kernels/grouped_gemm.h"

#include <algorithm>

#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "kernels/gemm_tile.h"
#include "kernels/gemm_units.h"
#include "kernels/kernel_set.h"

namespace plait::kernels {
namespace {

constexpr int64_t block_units = 256;         // a packed panel of so many units leaves most of the second-level cache to the operands
constexpr int64_t max_tile_rows = 384;       // packing a panel costs little beside multiplying so many rows by it
constexpr int64_t max_tile_columns = 256;    // bounds the float32 accumulators of a tile to a part of the second-level cache
constexpr int64_t max_right_floats = 65536;  // k-grouped: packed dy of a tile, likewise
constexpr int64_t tiles_per_thread = 4;

int64_t most_rows(std::span<const int64_t> counts) {
  return counts.empty() ? 1 : std::max<int64_t>(*std::max_element(counts.begin(), counts.end()), 1);
}

TileLimits capped(TileLimits limits, const TileShape& most) {
  if (most.rows > 0) limits.rows = std::min(limits.rows, most.rows);
  if (most.columns > 0) limits.columns = std::min(limits.columns, round_up(most.columns, max_panel_columns));
  return limits;
}

/// Appends the tiles of one group's block of rows x columns.
void append_tiles(std::vector<Tile>& tiles, int32_t group, int64_t first_row, int64_t rows, int64_t columns, const TileLimits& limits) {
  int64_t row_blocks = num_blocks(rows, limits.rows);
  for (int64_t b = 0; b < row_blocks; ++b) {
    for (int64_t c = 0; c < columns; c += limits.columns) {
      tiles.push_back({group, first_row, rows * b / row_blocks, rows * (b + 1) / row_blocks, c, std::min(c + limits.columns, columns)});
    }
  }
}

void run_one(const TileRunner& runner, const MGroupedGemm& problem, const Tile& tile, int worker, const Tile* next) {
  if (next == nullptr) return runner.run(problem, tile, worker);
  const NextTile next_tile{&problem, *next};
  runner.run(problem, tile, worker, &next_tile);
}
void run_one(const TileRunner& runner, const KGroupedGemm& problem, const Tile& tile, int worker, const Tile* /*next*/) {
  runner.run(problem, tile, worker);
}

template <typename Problem>
Status run_all(const Context& context, const Problem& problem) {
  const TileLimits limits = tile_limits(context, problem);
  std::vector<Tile> tiles = make_tiles(problem, limits);
  // Large tiles first, so that no thread starts one when the others are done.
  std::stable_sort(tiles.begin(), tiles.end(), [](const Tile& a, const Tile& b) { return a.area() > b.area(); });
  PLAIT_ASSIGN_OR_RETURN(TileRunner runner, TileRunner::create(context, problem, limits));
  context.pool().parallel_for(static_cast<int64_t>(tiles.size()), [&](int64_t i, int worker) {
    auto next = static_cast<size_t>(i + context.threads());
    run_one(runner, problem, tiles[static_cast<size_t>(i)], worker, next < tiles.size() ? &tiles[next] : nullptr);
  });
  return {};
}

}  // namespace

KGroupedGemm with_contiguous_columns(const KGroupedGemm& problem) {
  if (problem.dw_n_stride == 1 || problem.dw_k_stride != 1) return problem;
  KGroupedGemm swapped = problem;
  std::swap(swapped.k, swapped.n);
  std::swap(swapped.x, swapped.dy);
  std::swap(swapped.dw_k_stride, swapped.dw_n_stride);
  return swapped;
}

TileLimits tile_limits(const Context& context, const MGroupedGemm& problem) {
  const int threads = context.threads();
  const int64_t rows = std::min(most_rows(problem.counts), max_tile_rows);
  TileLimits limits{rows, std::min(round_up(problem.n, max_panel_columns), max_tile_columns), block_units};
  auto num_tiles = [&] {
    int64_t blocks = 0;
    for (int64_t count : problem.counts) blocks += num_blocks(count, limits.rows);
    return blocks * num_blocks(problem.n, limits.columns);
  };
  while (threads > 1 && limits.columns > max_panel_columns && num_tiles() < tiles_per_thread * threads) limits.columns -= max_panel_columns;
  return capped(limits, context.tile_shape());
}

TileLimits tile_limits(const Context& context, const KGroupedGemm& problem) {
  const int threads = context.threads();
  const int64_t rows = most_rows(problem.counts);
  TileLimits limits{};
  limits.block_units = std::min(round_up(rows, 2), block_units);
  const bool one_block = rows <= limits.block_units && problem.dw_n_stride == 1;
  const int64_t packed = max_right_floats / limits.block_units / max_panel_columns * max_panel_columns;
  const int64_t columns = one_block ? std::max(packed, max_tile_columns) : max_tile_columns;
  limits.columns = std::min(round_up(problem.n, max_panel_columns), columns);
  limits.rows = std::min(round_up(problem.k, max_panel_columns), one_block ? problem.k : max_tile_columns);
  auto groups = static_cast<int64_t>(problem.counts.size());
  auto num_tiles = [&] { return groups * num_blocks(problem.k, limits.rows) * num_blocks(problem.n, limits.columns); };
  while (threads > 1 && limits.rows > max_panel_columns && num_tiles() < tiles_per_thread * threads) limits.rows -= max_panel_columns;
  while (threads > 1 && limits.columns > max_panel_columns && num_tiles() < tiles_per_thread * threads) limits.columns -= max_panel_columns;
  return capped(limits, context.tile_shape());
}

std::vector<Tile> make_tiles(const MGroupedGemm& problem, const TileLimits& limits) {
  std::vector<Tile> tiles;
  int64_t first_row = 0;
  for (size_t g = 0; g < problem.counts.size(); ++g) {
    append_tiles(tiles, static_cast<int32_t>(g), first_row, problem.counts[g], problem.n, limits);
    first_row += problem.counts[g];
  }
  return tiles;
}

std::vector<Tile> make_tiles(const KGroupedGemm& problem, const TileLimits& limits) {
  std::vector<Tile> tiles;
  int64_t first_row = 0;
  for (size_t g = 0; g < problem.counts.size(); ++g) {
    if (problem.counts[g] > 0 || !problem.accumulate) {
      append_tiles(tiles, static_cast<int32_t>(g), first_row, problem.k, problem.n, limits);
    }
    first_row += problem.counts[g];
  }
  return tiles;
}

Result<TileRunner> TileRunner::create(const Context& context, int64_t scratch_floats, const TileLimits& limits) {
  TileRunner runner;
  runner.kernels_ = context.kernels().gemm;
  runner.limits_ = limits;
  runner.worker_floats_ = round_up(scratch_floats, line_bytes / 4);
  PLAIT_ASSIGN_OR_RETURN(runner.scratch_, context.scratch(runner.worker_floats_ * context.threads() * 4));
  return runner;
}
Result<TileRunner> TileRunner::create(const Context& context, const MGroupedGemm& problem, const TileLimits& limits) {
  return create(context, scratch_floats(problem, limits), limits);
}
Result<TileRunner> TileRunner::create(const Context& context, const KGroupedGemm& problem, const TileLimits& limits) {
  return create(context, scratch_floats(problem, limits), limits);
}

float* TileRunner::scratch(int worker) const { return reinterpret_cast<float*>(scratch_.get()) + worker * worker_floats_; }

void TileRunner::run(const MGroupedGemm& problem, const Tile& tile, int worker, const NextTile* next) const {
  run_tile(*kernels_, problem, limits_, tile, next, scratch(worker));
}
void TileRunner::run(const KGroupedGemm& problem, const Tile& tile, int worker, const RowStretch* stretch) const {
  run_tile(*kernels_, problem, limits_, tile, stretch, scratch(worker));
}

Status m_grouped_gemm(const Context& context, const MGroupedGemm& problem) { return run_all(context, problem); }
Status k_grouped_gemm(const Context& context, const KGroupedGemm& problem) { return run_all(context, with_contiguous_columns(problem)); }

}  // namespace plait::kernels
