#include "moe/rows.h"

#include "base/status_macros.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_set.h"

namespace plait::moe {

Result<DenseInput> rows_as(const Context& context, const ConstTensorView& rows, DType dtype) {
  PLAIT_ASSIGN_OR_RETURN(const DenseInput dense, DenseInput::make(context, rows));
  if (rows.dtype == dtype) return dense;
  const int64_t n = rows.shape[1];
  DenseInput cast;
  PLAIT_ASSIGN_OR_RETURN(cast.copy, context.empty(dtype, {rows.shape[0], n}));
  cast.view = cast.copy;
  const kernels::ElementwiseKernels& kernels = *context.kernels().elementwise;
  for_blocks(context, rows.shape[0], n * size_of(DType::f32), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      if (dtype == DType::f32) {
        kernels.load(rows.dtype, dense.view.at(i), reinterpret_cast<float*>(cast.copy.view.at(i)), n);
      } else {
        kernels.store(dtype, reinterpret_cast<const float*>(dense.view.at(i)), cast.copy.view.at(i), n);
      }
    }
  });
  return cast;
}

}  // namespace plait::moe
