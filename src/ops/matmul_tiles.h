#pragma once
/// Grouped matmuls as lists of tiles for the tile scheduler. Operands are trusted.

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/grouped_gemm.h"
#include "ops/dense_rows.h"
#include "plait/context.h"
#include "plait/status.h"
#include "plait/tensor.h"
#include "routing/row_access.h"

namespace plait {

/// y = x * weight (+ bias), block of rows by block of rows. The tile shape is that of the unfused grouped_matmul.
class MatmulTiles {
 public:
  struct Operands {
    kernels::Rows x;                  ///< expert-major rows of weight.shape[1] elements
    ConstTensorView weight;           ///< (G,K,N), any strides
    ConstTensorView bias;             ///< (G,N) or undefined
    kernels::MutableRows y;           ///< expert-major rows of N elements of the weight's type
    std::span<const int64_t> counts;  ///< rows per group
  };
  /// `operands.counts` and all memory must outlive it.
  static Result<MatmulTiles> create(const Context& context, const Operands& operands);

  int64_t max_rows() const { return limits_.rows; }
  /// Tasks of one block of rows: its tiles, or all of them in one where a single thread runs everything.
  int64_t num_tasks() const { return single_ ? 1 : num_tiles(); }
  /// `next`, where not null, runs soon after it on the same worker: its first weights are fetched meanwhile.
  void run(const ExpertBlock& block, int64_t task, int worker, const kernels::NextTile* next = nullptr) const;
  kernels::NextTile first_tile(const ExpertBlock& block) const { return {&problem_, tile_of(block, 0)}; }

 private:
  int64_t num_tiles() const { return (problem_.n + limits_.columns - 1) / limits_.columns; }
  kernels::Tile tile_of(const ExpertBlock& block, int64_t tile) const;

  kernels::MGroupedGemm problem_;
  kernels::TileLimits limits_{};
  kernels::TileRunner runner_;
  DenseInput bias_;
  bool single_ = false;
};

/// dw[g] = x_g^T dy_g as tiles, group by group; or dw[g] += with `accumulate`.
class WeightGradientTiles {
 public:
  struct Operands {
    kernels::Rows x, dy;  ///< expert-major rows
    DType dtype;          ///< of x and dy
    TensorView dw;        ///< (G,K,N)
    bool accumulate;
    std::span<const int64_t> counts;
  };
  static Result<WeightGradientTiles> create(const Context& context, const Operands& operands);

  /// Tasks of one group, as above; 0 where nothing is to be written.
  int64_t num_tasks(int64_t group) const { return single_ ? std::min<int64_t>(num_tiles(group), 1) : num_tiles(group); }
  /// `stretch`: only those rows of the group; its `carry` has carry_floats() for the group.
  void run(int64_t group, int64_t task, int worker, const kernels::RowStretch* stretch = nullptr) const;

  int64_t num_tiles(int64_t group) const { return begins_[static_cast<size_t>(group) + 1] - begins_[static_cast<size_t>(group)]; }
  int64_t carry_floats(int64_t group) const { return num_tiles(group) * kernels::carry_floats(limits_); }
  void run_tile(int64_t group, int64_t tile, int worker, const kernels::RowStretch* stretch = nullptr) const;

 private:
  kernels::KGroupedGemm problem_;
  kernels::TileLimits limits_{};
  kernels::TileRunner runner_;
  std::vector<kernels::Tile> tiles_;
  std::vector<int64_t> begins_;  ///< of each group's tiles, and their end
  bool single_ = false;
};

}  // namespace plait
