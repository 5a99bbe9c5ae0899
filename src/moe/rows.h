#pragma once
/// Rows in another element type.

#include "ops/dense_rows.h"
#include "plait/context.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait::moe {

/// Rows of any strides as rows with contiguous elements of `dtype`: themselves where they are that, else a copy. To float32 the values stay
/// exact, from it they are rounded to nearest even.
Result<DenseInput> rows_as(const Context& context, const ConstTensorView& rows, DType dtype);

}  // namespace plait::moe
