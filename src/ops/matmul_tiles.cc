#include "ops/matmul_tiles.h"

#include <algorithm>
#include <numeric>

#include "base/status_macros.h"
#include "ops/grouped_matmul_layout.h"
#include "plait/counters.h"

namespace plait {
namespace {

int64_t total(std::span<const int64_t> counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

}  // namespace

Result<MatmulTiles> MatmulTiles::create(const Context& context, const Operands& operands) {
  MatmulTiles tiles;
  PLAIT_ASSIGN_OR_RETURN(tiles.bias_, DenseInput::make(context, operands.bias));
  const ConstTensorView& weight = operands.weight;
  tiles.problem_ = {.in = weight.dtype,
                    .out = weight.dtype,
                    .k = weight.shape[1],
                    .n = weight.shape[2],
                    .counts = operands.counts,
                    .x = operands.x,
                    .weights = gmm_layout::weights_of(weight),
                    .bias = tiles.bias_.view.data,
                    .bias_type = operands.bias.dtype,
                    .bias_group_stride = tiles.bias_.view.strides[0],
                    .y = operands.y};
  tiles.single_ = context.threads() == 1;
  tiles.limits_ = kernels::tile_limits(context, tiles.problem_);
  PLAIT_ASSIGN_OR_RETURN(tiles.runner_, kernels::TileRunner::create(context, tiles.problem_, tiles.limits_));
  context.recorder().add(Counter::matmul_flops, 2 * total(operands.counts) * tiles.problem_.k * tiles.problem_.n);
  return tiles;
}

kernels::Tile MatmulTiles::tile_of(const ExpertBlock& block, int64_t tile) const {
  const int64_t column = tile * limits_.columns;
  return {static_cast<int32_t>(block.local_expert),      block.first_row, block.row_begin, block.row_end, column,
          std::min(column + limits_.columns, problem_.n)};
}

void MatmulTiles::run(const ExpertBlock& block, int64_t task, int worker, const kernels::NextTile* next) const {
  const int64_t begin = single_ ? 0 : task, end = single_ ? num_tiles() : task + 1;
  for (int64_t tile = begin; tile < end; ++tile) {
    if (tile + 1 == num_tiles()) return runner_.run(problem_, tile_of(block, tile), worker, next);
    const kernels::NextTile own{&problem_, tile_of(block, tile + 1)};
    runner_.run(problem_, tile_of(block, tile), worker, &own);
  }
}

Result<WeightGradientTiles> WeightGradientTiles::create(const Context& context, const Operands& operands) {
  WeightGradientTiles tiles;
  tiles.problem_ = kernels::with_contiguous_columns({.in = operands.dtype,
                                                     .out = operands.dw.dtype,
                                                     .k = operands.dw.shape[1],
                                                     .n = operands.dw.shape[2],
                                                     .counts = operands.counts,
                                                     .x = operands.x,
                                                     .dy = operands.dy,
                                                     .dw = operands.dw.data,
                                                     .dw_group_stride = operands.dw.strides[0],
                                                     .dw_k_stride = operands.dw.strides[1],
                                                     .dw_n_stride = operands.dw.shape[2] == 1 ? 1 : operands.dw.strides[2],
                                                     .accumulate = operands.accumulate});
  tiles.single_ = context.threads() == 1;
  tiles.limits_ = kernels::tile_limits(context, tiles.problem_);
  tiles.tiles_ = kernels::make_tiles(tiles.problem_, tiles.limits_);
  tiles.begins_.assign(operands.counts.size() + 1, 0);
  for (const kernels::Tile& tile : tiles.tiles_) ++tiles.begins_[static_cast<size_t>(tile.group) + 1];
  std::partial_sum(tiles.begins_.begin(), tiles.begins_.end(), tiles.begins_.begin());
  PLAIT_ASSIGN_OR_RETURN(tiles.runner_, kernels::TileRunner::create(context, tiles.problem_, tiles.limits_));
  context.recorder().add(Counter::matmul_flops, 2 * total(operands.counts) * tiles.problem_.k * tiles.problem_.n);
  return tiles;
}

void WeightGradientTiles::run(int64_t group, int64_t task, int worker, const kernels::RowStretch* stretch) const {
  const int64_t begin = single_ ? 0 : task, end = single_ ? num_tiles(group) : begin + 1;
  for (int64_t tile = begin; tile < end; ++tile) run_tile(group, tile, worker, stretch);
}

void WeightGradientTiles::run_tile(int64_t group, int64_t tile, int worker, const kernels::RowStretch* stretch) const {
  const kernels::Tile& where = tiles_[static_cast<size_t>(begins_[static_cast<size_t>(group)] + tile)];
  if (stretch == nullptr) return runner_.run(problem_, where, worker);
  const kernels::RowStretch rows{stretch->begin, stretch->end, stretch->carry + tile * kernels::carry_floats(limits_)};
  runner_.run(problem_, where, worker, &rows);
}

}  // namespace plait
