#pragma once
/// Grouped matrix multiplications under the contract of docs/numerics.md: every output element is one float32 chain, k ascending
/// (bf16: pairs, the odd element first), whatever the tile, the thread count and the tier.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/rows.h"
#include "plait/context.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait::kernels {

struct GemmKernels;  // gemm_kernels.h

/// The right-hand matrices, one (K,N) per group, any strides in elements (k_stride == 1: stored [N,K]; n_stride == 1: stored [K,N];
/// both are read in place without a copied transpose; other strides work, slower).
struct Weights {
  const std::byte* data = nullptr;
  int64_t group_stride = 0;
  int64_t k_stride = 0;
  int64_t n_stride = 0;
};

/// y[rows of g] = x[rows of g] * weight[g] (+ bias[g]). Rows of group g follow those of g-1, in x and in y.
struct MGroupedGemm {
  DType in = DType::f32;   ///< type of x and weights
  DType out = DType::f32;  ///< `in`, or f32 (unrounded chain)
  int64_t k = 0;
  int64_t n = 0;
  std::span<const int64_t> counts;  ///< rows per group
  Rows x;                           ///< sum(counts) rows of k elements of type `in`
  Weights weights;
  const std::byte* bias = nullptr;  ///< null, or one row of n elements of type `bias_type` per group
  DType bias_type = DType::f32;
  int64_t bias_group_stride = 0;  ///< in elements
  MutableRows y;                  ///< sum(counts) rows of n elements of type `out`; need not be cleared, no element beyond n is touched
};

/// dw[g] = x[rows of g]^T * dy[rows of g], the sum over rows a chain in ascending row order (bf16: pairs counted inside the group).
struct KGroupedGemm {
  DType in = DType::f32;   ///< type of x and dy
  DType out = DType::f32;  ///< type of dw: `in` or f32
  int64_t k = 0;           ///< columns of x = rows of dw[g]
  int64_t n = 0;           ///< columns of dy = columns of dw[g]
  std::span<const int64_t> counts;
  Rows x;
  Rows dy;
  std::byte* dw = nullptr;  ///< (G,k,n); strides in elements below; row-major: k_stride = n, n_stride = 1; transposed storage: n_stride = k
  int64_t dw_group_stride = 0;
  int64_t dw_k_stride = 0;
  int64_t dw_n_stride = 1;
  bool accumulate = false;  ///< dw is f32 and is added to: dw += chain, one addition; groups without rows stay untouched.
                            ///< Without: groups without rows become zeros.
};

/// The same problem, or dw^T = dy^T x where that makes the columns of dw contiguous: the same chains with the factors exchanged.
KGroupedGemm with_contiguous_columns(const KGroupedGemm& problem);

/// Runs the whole problem on the context's threads. Arguments are trusted (ops/ validates); fails only when scratch memory is short.
Status m_grouped_gemm(const Context& context, const MGroupedGemm& problem);
Status k_grouped_gemm(const Context& context, const KGroupedGemm& problem);

/// The tiles of a problem, for schedulers that order them themselves (the fused operators). A tile is a block of rows of one group by
/// a block of columns; tiles are independent and may run in any order on any thread.
struct Tile {
  int32_t group;
  int64_t group_first_row;     ///< of x and y (dy): where the group's rows start
  int64_t row_begin, row_end;  ///< counted inside the group (m-grouped) or rows of dw[g] (k-grouped)
  int64_t col_begin, col_end;

  int64_t area() const { return (row_end - row_begin) * (col_end - col_begin); }
};

/// The largest tile a list may hold. Larger tiles repeat less packing, smaller ones keep more threads busy; bits never depend on it.
struct TileLimits {
  int64_t rows;
  int64_t columns;      ///< whole panels of any tier
  int64_t block_units;  ///< 32-bit units of k (one float32, one or two bf16) that are multiplied at a stretch; bounds scratch memory
};

/// Limits that suit the problem's shape and give the context's threads enough tiles; at most its tile_shape().
TileLimits tile_limits(const Context& context, const MGroupedGemm& problem);
TileLimits tile_limits(const Context& context, const KGroupedGemm& problem);

/// All tiles of the problem, in the order of groups, then rows, then columns. Groups without rows give none, except those of a k-grouped
/// problem whose block must become zeros.
std::vector<Tile> make_tiles(const MGroupedGemm& problem, const TileLimits& limits);
std::vector<Tile> make_tiles(const KGroupedGemm& problem, const TileLimits& limits);

/// A tile that will probably run next on the same worker, of any m-grouped problem with operands of the same type.
struct NextTile {
  const MGroupedGemm* problem;
  Tile tile;
};

/// Rows [begin, end) of a k-grouped tile's group, for chains that are made in several goes, in order. `begin` is even. Between them the
/// accumulators lie in `carry`: memory of carry_floats() for each tile.
struct RowStretch {
  int64_t begin, end;
  float* carry;
};
int64_t carry_floats(const TileLimits& limits);

/// Runs tiles on a context's threads. Holds scratch memory for each worker, enough for tiles up to `limits` of problems of the given
/// shape (types, k, n, counts, strides); the context must outlive it.
/// Example: PLAIT_ASSIGN_OR_RETURN(TileRunner runner, TileRunner::create(context, problem, limits)); runner.run(problem, tile, worker);
class TileRunner {
 public:
  static Result<TileRunner> create(const Context& context, const MGroupedGemm& problem, const TileLimits& limits);
  static Result<TileRunner> create(const Context& context, const KGroupedGemm& problem, const TileLimits& limits);
  /// Runs one tile as thread `worker` (0 <= worker < context.threads()); FloatMode must be set, as ThreadPool::parallel_for does.
  /// The first weights of `next`, where not null, are fetched meanwhile.
  void run(const MGroupedGemm& problem, const Tile& tile, int worker, const NextTile* next = nullptr) const;
  /// The result is written with the group's last row. Without a stretch: all rows at once.
  void run(const KGroupedGemm& problem, const Tile& tile, int worker, const RowStretch* stretch = nullptr) const;

 private:
  static Result<TileRunner> create(const Context& context, int64_t scratch_floats, const TileLimits& limits);
  float* scratch(int worker) const;

  const GemmKernels* kernels_ = nullptr;
  TileLimits limits_{};
  Buffer scratch_;
  int64_t worker_floats_ = 0;
};

}  // namespace plait::kernels
