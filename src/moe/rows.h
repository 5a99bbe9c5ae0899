#pragma once
/// Small helpers on matrices of rows: one group of a grouped operator, and rows in another element type.

#include "ops/dense_rows.h"
#include "plait/context.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait::moe {

/// A view with a leading dimension of 1; undefined stays undefined.
template <typename Byte>
BasicTensorView<Byte> as_group(const BasicTensorView<Byte>& view) {
  if (!view.defined()) return view;
  BasicTensorView<Byte> group = view;
  for (int d = view.num_dims; d > 0; --d) {
    group.shape[d] = view.shape[d - 1];
    group.strides[d] = view.strides[d - 1];
  }
  group.shape[0] = 1;
  group.strides[0] = view.shape[0] * view.strides[0];
  ++group.num_dims;
  return group;
}

/// Rows of any strides as rows with contiguous elements of `dtype`: themselves where they are that, else a copy. To float32 the values stay
/// exact, from it they are rounded to nearest even.
Result<DenseInput> rows_as(const Context& context, const ConstTensorView& rows, DType dtype);

}  // namespace plait::moe
