#include <algorithm>
#include <cstring>

#include "kernels/gemm_reference.h"
#include "kernels/gemm_tile.h"
#include "kernels/gemm_units.h"

namespace plait::kernels {
namespace {

/// Results are fetched for writing this many rows ahead where a product takes less time than that.
constexpr int64_t short_product_units = 48;
constexpr int64_t rows_ahead = 24;

/// Results of this many bytes in all do not stay in a core's caches until somebody reads them.
constexpr int64_t streamed_bytes = int64_t{8} << 20;

/// True where whole panels of dw may bypass the caches: few rows, so that writing dw is most of the work.
bool can_stream(const GemmPrimitives& primitives, const KGroupedGemm& problem, const Tile& tile, int64_t num_units) {
  const int64_t bytes = size_of(problem.out), line = primitives.stream_bytes;
  if (line == 0 || problem.accumulate || problem.dw_n_stride != 1 || problem.out == DType::f16 || num_units >= short_product_units) return false;
  if (static_cast<int64_t>(problem.counts.size()) * problem.k * problem.n * bytes < streamed_bytes) return false;
  auto aligned = [&](int64_t x) { return x % line == 0; };
  return aligned(primitives.panel_columns * bytes) && aligned(tile.col_begin * bytes) && aligned(reinterpret_cast<intptr_t>(problem.dw)) &&
         aligned(problem.dw_k_stride * bytes) && aligned(problem.dw_group_stride * bytes);
}

/// True where accumulators must be kept in memory: the chain has several blocks, or dw has no contiguous columns.
bool needs_accumulators(const KGroupedGemm& problem, int64_t num_rows, const TileLimits& limits) {
  return num_rows > limits.block_units || problem.dw_n_stride != 1;
}

/// A tile of a weight gradient: x^T is the left operand, dy the right one, k runs over the rows of both.
class KTile {
 public:
  KTile(const GemmPrimitives& primitives, const KGroupedGemm& problem, const TileLimits& limits, const Tile& tile, const RowStretch& rows,
        float* scratch)
      : primitives_(primitives), problem_(problem), limits_(limits), tile_(tile), rows_(rows), shape_(primitives, problem.in) {
    left_ = scratch;
    right_ = left_ + limits.block_units * max_panel_columns;
    acc_ = rows.carry != nullptr ? rows.carry : right_ + limits.block_units * limits.columns;
    num_rows_ = problem.counts[static_cast<size_t>(tile.group)];
    block_ = shape_.elements(limits.block_units);
  }

  void run() {
    PanelProduct p{};
    p.pairs = shape_.pairs;
    p.a_step = primitives_.panel_columns * 4;
    p.acc_stride = limits_.columns;
    p.out_type = problem_.out;
    p.accumulate = problem_.accumulate;
    p.prefetch = &cursor_;
    p.stream = can_stream(primitives_, problem_, tile_, shape_.units(num_rows_));
    const bool contiguous = problem_.dw_n_stride == 1;
    for (int64_t k = rows_.begin; k < rows_.end; k += block_) {
      const int64_t num_k = std::min(block_, rows_.end - k);
      p.units = shape_.units(num_k);
      p.load_acc = k > 0;
      p.store_acc = k + num_k < num_rows_ || !contiguous;
      for (int64_t column = tile_.col_begin; column < tile_.col_end; column += primitives_.panel_columns) {
        primitives_.pack(block(problem_.dy, k, num_k, column, tile_.col_end), right_panel(column, p.units));
      }
      for (int64_t row = tile_.row_begin; row < tile_.row_end; row += primitives_.panel_columns) multiply_rows(p, k, num_k, row);
    }
    if (!contiguous && rows_.end == num_rows_) scatter();
  }

 private:
  float* right_panel(int64_t column, int64_t units) const { return right_ + (column - tile_.col_begin) * units; }

  /// One panel of rows of dw: all its columns, so that neighbouring results are written close in time.
  void multiply_rows(PanelProduct& p, int64_t k, int64_t num_k, int64_t row) {
    const int64_t out_bytes = size_of(problem_.out);
    primitives_.pack(block(problem_.x, k, num_k, row, tile_.row_end), left_);
    p.a = Rows{reinterpret_cast<const std::byte*>(left_), 4, nullptr};
    p.num_rows = std::min(primitives_.panel_columns, tile_.row_end - row);
    p.out_ahead = p.units < short_product_units ? std::min(rows_ahead, p.num_rows) : 0;
    std::byte* dw = problem_.dw + (tile_.group * problem_.dw_group_stride + row * problem_.dw_k_stride) * out_bytes;
    p.out = MutableRows{dw, problem_.dw_k_stride * out_bytes, nullptr};
    for (int64_t column = tile_.col_begin; column < tile_.col_end; column += primitives_.panel_columns) {
      p.b = right_panel(column, p.units);
      p.columns = std::min(primitives_.panel_columns, tile_.col_end - column);
      p.acc = acc_ + (row - tile_.row_begin) * p.acc_stride + column - tile_.col_begin;
      p.out_offset = column * out_bytes;
      primitives_.multiply(p);
    }
  }

  /// Rows [k, k + num_k) of the group, a panel of columns from `column` on.
  PackSource block(const Rows& rows, int64_t k, int64_t num_k, int64_t column, int64_t column_end) const {
    return {problem_.in, rows, tile_.group_first_row + k, num_k, column, std::min(primitives_.panel_columns, column_end - column)};
  }

  /// Stores the finished accumulators to a dw without contiguous columns.
  void scatter() const {
    std::byte* dw = problem_.dw + tile_.group * problem_.dw_group_stride * size_of(problem_.out);
    for (int64_t i = tile_.row_begin; i < tile_.row_end; ++i) {
      for (int64_t j = tile_.col_begin; j < tile_.col_end; ++j) {
        float value = acc_[(i - tile_.row_begin) * limits_.columns + j - tile_.col_begin];
        int64_t at = i * problem_.dw_k_stride + j * problem_.dw_n_stride;
        if (problem_.accumulate) value += load_element(DType::f32, dw, at);
        store_element(problem_.out, dw, at, value);
      }
    }
  }

  const GemmPrimitives& primitives_;
  const KGroupedGemm& problem_;
  const TileLimits& limits_;
  const Tile& tile_;
  const RowStretch rows_;
  UnitShape shape_;
  int64_t num_rows_;
  int64_t block_;  ///< rows per block
  float *left_, *right_, *acc_;
  PrefetchCursor cursor_;
};

/// Zeros for the dw of a group without rows.
void clear_tile(const KGroupedGemm& problem, const Tile& tile) {
  const int64_t bytes = size_of(problem.out);
  std::byte* dw = problem.dw + tile.group * problem.dw_group_stride * bytes;
  for (int64_t i = tile.row_begin; i < tile.row_end; ++i) {
    std::byte* row = dw + i * problem.dw_k_stride * bytes;
    if (problem.dw_n_stride == 1) {
      std::memset(row + tile.col_begin * bytes, 0, static_cast<size_t>((tile.col_end - tile.col_begin) * bytes));
    } else {
      for (int64_t j = tile.col_begin; j < tile.col_end; ++j) std::memset(row + j * problem.dw_n_stride * bytes, 0, static_cast<size_t>(bytes));
    }
  }
}

}  // namespace

int64_t scratch_floats(const KGroupedGemm& problem, const TileLimits& limits) {
  int64_t most_rows = 0;
  for (int64_t count : problem.counts) most_rows = std::max(most_rows, count);
  int64_t acc = needs_accumulators(problem, most_rows, limits) ? carry_floats(limits) : 0;
  return limits.block_units * (max_panel_columns + limits.columns) + acc;
}

int64_t carry_floats(const TileLimits& limits) { return limits.rows * limits.columns; }

void run_tile(const GemmKernels& kernels, const KGroupedGemm& problem, const TileLimits& limits, const Tile& tile, const RowStretch* stretch,
              float* scratch) {
  const int64_t num_rows = problem.counts[static_cast<size_t>(tile.group)];
  if (num_rows == 0) {
    if (!problem.accumulate) clear_tile(problem, tile);
    return;
  }
  const RowStretch rows = stretch != nullptr ? *stretch : RowStretch{0, num_rows, nullptr};
  if (kernels.primitives == nullptr) {
    if (rows.end == num_rows) reference_k_tile(problem, tile);
    return;
  }
  KTile(*kernels.primitives, problem, limits, tile, rows, scratch).run();
}

}  // namespace plait::kernels
