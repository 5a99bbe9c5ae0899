#include "ops/dense_rows.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/status_macros.h"

namespace plait {
namespace {

/// Rows and columns of a tile: both sides of a transposing copy of one stay in the first-level cache.
constexpr int64_t tile = 64;

/// Walks along the axis in which `from` is denser.
template <typename T>
void copy_tile(const T* from, std::array<int64_t, 2> from_strides, T* to, std::array<int64_t, 2> to_strides, int64_t rows, int64_t columns) {
  if (std::abs(from_strides[0]) < std::abs(from_strides[1])) {
    std::swap(from_strides[0], from_strides[1]);
    std::swap(to_strides[0], to_strides[1]);
    std::swap(rows, columns);
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) to[i * to_strides[0] + j * to_strides[1]] = from[i * from_strides[0] + j * from_strides[1]];
  }
}

template <typename T>
void copy_as(const Context& context, const ConstTensorView& from, const TensorView& to) {
  context.pool().parallel_for((from.shape[0] + tile - 1) / tile, [&](int64_t block, int) {
    int64_t row = block * tile;
    int64_t rows = std::min(tile, from.shape[0] - row);
    for (int64_t column = 0; column < from.shape[1]; column += tile) {
      copy_tile<T>(reinterpret_cast<const T*>(from.at(row, column)), {from.strides[0], from.strides[1]}, reinterpret_cast<T*>(to.at(row, column)),
                   {to.strides[0], to.strides[1]}, rows, std::min(tile, from.shape[1] - column));
    }
  });
}

}  // namespace

void copy_elements(const Context& context, const ConstTensorView& from, const TensorView& to) {
  switch (size_of(from.dtype)) {
    case 1:
      return copy_as<uint8_t>(context, from, to);
    case 2:
      return copy_as<uint16_t>(context, from, to);
    case 4:
      return copy_as<uint32_t>(context, from, to);
    default:
      return copy_as<uint64_t>(context, from, to);
  }
}

void copy_rows(const Context& context, const ConstTensorView& from, const TensorView& to) {
  const int64_t row_bytes = from.shape[1] * size_of(from.dtype);
  for_blocks(context, from.shape[0], 2 * row_bytes, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) std::memcpy(to.at(i), from.at(i), static_cast<size_t>(row_bytes));
  });
}

Result<DenseInput> DenseInput::make(const Context& context, const ConstTensorView& view) {
  if (!view.defined() || has_dense_rows(view)) return DenseInput{{}, view};
  PLAIT_ASSIGN_OR_RETURN(Tensor copy, context.empty(view.dtype, {view.shape[0], view.shape[1]}));
  copy_elements(context, view, copy);
  return DenseInput{copy, copy};
}

Result<DenseOutput> DenseOutput::make(const Context& context, const TensorView& target) {
  if (!target.defined() || has_dense_rows(target)) return DenseOutput{{}, target, target};
  PLAIT_ASSIGN_OR_RETURN(Tensor scratch, context.empty(target.dtype, {target.shape[0], target.shape[1]}));
  return DenseOutput{scratch, scratch, target};
}

void DenseOutput::finish(const Context& context) const {
  if (scratch.defined()) copy_elements(context, scratch, target);
}

}  // namespace plait
