#include <algorithm>
#include <cstring>

#include "kernels/gemm_reference.h"
#include "kernels/gemm_tile.h"
#include "kernels/gemm_units.h"

namespace plait::kernels {
namespace {

/// Weights are fetched this far ahead of their use at least: what memory delivers in a few times its latency.
constexpr int64_t bytes_ahead = 8192;

/// A tile on its way: blocks along k outside, panels of columns inside. A panel is packed while its first rows are multiplied.
class MTile {
 public:
  MTile(const GemmPrimitives& primitives, const MGroupedGemm& problem, const TileLimits& limits, const Tile& tile, const NextTile* next,
        float* scratch)
      : primitives_(primitives), problem_(problem), limits_(limits), tile_(tile), next_(next), shape_(primitives, problem.in) {
    panel_ = scratch;
    gathered_ = panel_ + limits.block_units * max_panel_columns;
    bias_ = gathered_ + limits.block_units * max_panel_columns;
    left_ = bias_ + max_panel_columns;
    acc_ = left_ + limits.rows * limits.block_units;
    block_ = shape_.elements(limits.block_units);
    contiguous_ = problem.weights.n_stride == 1 || problem.weights.k_stride == 1;
    num_rows_ = tile.row_end - tile.row_begin;
  }

  static int64_t scratch_floats(const TileLimits& limits) {
    return (2 * limits.block_units + 1) * max_panel_columns + limits.rows * limits.block_units + limits.rows * limits.columns;
  }

  void run() {
    PanelProduct p{};
    p.pairs = shape_.pairs;
    p.num_rows = num_rows_;
    p.b = panel_;
    p.acc_stride = limits_.columns;
    p.out = problem_.y.from(first_row());
    p.out_type = problem_.out;
    p.prefetch = &cursor_;
    start_prefetch();
    for (int64_t k = 0; k < problem_.k; k += block_) {
      set_left(p, k);
      p.load_acc = k > 0;
      p.store_acc = k + block_ < problem_.k;
      for (int64_t column = tile_.col_begin; column < tile_.col_end; column += primitives_.panel_columns) {
        const PackSource source = contiguous_ ? block(problem_, tile_, k, column) : gathered_block(k, column);
        p.source = &source;
        p.columns = std::min(primitives_.panel_columns, tile_.col_end - column);
        p.acc = acc_ + column - tile_.col_begin;
        p.out_offset = column * size_of(problem_.out);
        p.bias = p.store_acc ? nullptr : load_bias(column, p.columns);
        prefetch_after(k, column, p.units);
        primitives_.multiply(p);
      }
    }
  }

 private:
  int64_t first_row() const { return tile_.group_first_row + tile_.row_begin; }

  /// The left operand's elements from `k` on: where they are, or converted.
  void set_left(PanelProduct& p, int64_t k) const {
    const int64_t num_k = std::min(block_, problem_.k - k);
    p.half_unit = shape_.pairs && num_k % 2 != 0;
    p.units = shape_.units(num_k) - (p.half_unit ? 1 : 0);
    if (shape_.in_place()) {
      p.a = problem_.x.from(first_row());
      p.a_offset = k * size_of(problem_.in);
    } else {
      primitives_.convert_rows({problem_.in, problem_.x, first_row(), num_rows_, k, num_k}, left_, limits_.block_units);
      p.a = Rows{reinterpret_cast<const std::byte*>(left_), limits_.block_units * 4, nullptr};
    }
  }

  /// A panel of the weights from (k, column) on, cut off at the tile's end.
  PackSource block(const MGroupedGemm& problem, const Tile& tile, int64_t k, int64_t column) const {
    const Weights& w = problem.weights;
    const int64_t bytes = size_of(problem.in);
    const int64_t num_k = std::min(block_, problem.k - k);
    const int64_t columns = std::min(primitives_.panel_columns, tile.col_end - column);
    const std::byte* data = w.data + (tile.group * w.group_stride + column * w.n_stride) * bytes;
    if (w.n_stride == 1) return {problem.in, Rows{data, w.k_stride * bytes, nullptr}, k, num_k, 0, columns, true};
    return {problem.in, Rows{data, w.n_stride * bytes, nullptr}, 0, columns, k, num_k, false};
  }

  /// The same from weights without a contiguous axis, copied together.
  PackSource gathered_block(int64_t k, int64_t column) const {
    const Weights& w = problem_.weights;
    const int64_t bytes = size_of(problem_.in);
    const int64_t num_k = std::min(block_, problem_.k - k);
    const int64_t columns = std::min(primitives_.panel_columns, tile_.col_end - column);
    const std::byte* data = w.data + (tile_.group * w.group_stride + k * w.k_stride + column * w.n_stride) * bytes;
    auto* to = reinterpret_cast<std::byte*>(gathered_);
    for (int64_t i = 0; i < num_k; ++i) {
      for (int64_t c = 0; c < columns; ++c) {
        std::memcpy(to + (i * columns + c) * bytes, data + (i * w.k_stride + c * w.n_stride) * bytes, static_cast<size_t>(bytes));
      }
    }
    return {problem_.in, Rows{to, columns * bytes, nullptr}, 0, num_k, 0, columns, true};
  }

  const float* load_bias(int64_t column, int64_t columns) const {
    if (problem_.bias == nullptr) return nullptr;
    const std::byte* row = problem_.bias + tile_.group * problem_.bias_group_stride * size_of(problem_.bias_type);
    for (int64_t c = 0; c < max_panel_columns; ++c) bias_[c] = c < columns ? load_element(problem_.bias_type, row, column + c) : 0.0F;
    return bias_;
  }

  /// Where k runs over rows, the first pass over a panel reads it from memory, and all passes fetch what comes after it. So that the first one
  /// does not overtake them, the cursor starts as far ahead as the others will fetch.
  void start_prefetch() {
    if (problem_.weights.n_stride != 1) return;
    cursor_.now = lines_of(block(problem_, tile_, 0, tile_.col_begin));
    const int64_t lines = cursor_.now.rows * cursor_.now.lines, passes = num_blocks(num_rows_, primitives_.max_rows);
    cursor_.fetch(bytes_ahead / line_bytes + lines - lines / passes);
  }

  /// Plans to fetch what is read after the panel at (k, column): the next one, the next block along k, or the next tile.
  void prefetch_after(int64_t k, int64_t column, int64_t units) {
    const PrefetchCursor::Block lines = contiguous_ ? lines_after(k, column) : PrefetchCursor::Block{};
    const int64_t chunks = std::max<int64_t>(num_blocks(units, primitives_.chunk_units), 1);
    const int64_t passes = num_blocks(num_rows_, primitives_.max_rows);
    cursor_.first_rate = cursor_.rest_rate = num_blocks(lines.rows * lines.lines, chunks * passes);
    if (problem_.weights.n_stride == 1) {
      (cursor_.now.rows > 0 ? cursor_.then : cursor_.now) = lines;
    } else {
      cursor_.now = lines;
      cursor_.line = 0;
    }
  }

  PrefetchCursor::Block lines_after(int64_t k, int64_t column) const {
    if (column + primitives_.panel_columns < tile_.col_end) return lines_of(block(problem_, tile_, k, column + primitives_.panel_columns));
    if (k + block_ < problem_.k) return lines_of(block(problem_, tile_, k + block_, tile_.col_begin));
    if (next_ != nullptr) return lines_of(block(*next_->problem, next_->tile, 0, next_->tile.col_begin));
    return {};
  }

  const GemmPrimitives& primitives_;
  const MGroupedGemm& problem_;
  const TileLimits& limits_;
  const Tile& tile_;
  const NextTile* next_;
  UnitShape shape_;
  int64_t block_;  ///< elements along k
  int64_t num_rows_;
  bool contiguous_;
  float *panel_, *gathered_, *bias_, *left_, *acc_;
  PrefetchCursor cursor_;
};

}  // namespace

int64_t scratch_floats(const MGroupedGemm& /*problem*/, const TileLimits& limits) { return MTile::scratch_floats(limits); }

void run_tile(const GemmKernels& kernels, const MGroupedGemm& problem, const TileLimits& limits, const Tile& tile, const NextTile* next,
              float* scratch) {
  if (kernels.primitives == nullptr) return reference_m_tile(problem, tile);
  MTile(*kernels.primitives, problem, limits, tile, next, scratch).run();
}

}  // namespace plait::kernels
