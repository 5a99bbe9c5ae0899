#pragma once
/// Grouped matmuls as lists of tiles for the tile scheduler. Operands are trusted.

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
  /// Tiles of one block of rows.
  int64_t num_tiles() const { return (problem_.n + limits_.columns - 1) / limits_.columns; }
  void run(const ExpertBlock& block, int64_t tile, int worker) const;

 private:
  kernels::Tile tile_of(const ExpertBlock& block, int64_t tile) const;

  kernels::MGroupedGemm problem_;
  kernels::TileLimits limits_{};
  kernels::TileRunner runner_;
  DenseInput bias_;
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

  int64_t num_tiles(int64_t group) const { return begins_[static_cast<size_t>(group) + 1] - begins_[static_cast<size_t>(group)]; }
  void run(int64_t group, int64_t tile, int worker) const;

 private:
  kernels::KGroupedGemm problem_;
  kernels::TileRunner runner_;
  std::vector<kernels::Tile> tiles_;
  std::vector<int64_t> begins_;  ///< of each group's tiles, and their end
};

}  // namespace plait
