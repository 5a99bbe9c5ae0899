#pragma once
/// Memory layouts of grouped matmul operands: how the kernels see them, and what must not overlap.

#include <cstdint>
#include <string_view>

#include "kernels/grouped_gemm.h"
#include "kernels/rows.h"
#include "plait/context.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait::gmm_layout {

/// The rows of a matrix for which has_dense_rows() holds: base and row stride describe it, whatever the stride.
inline kernels::Rows rows_of(const ConstTensorView& matrix) { return {matrix.data, matrix.strides[0] * size_of(matrix.dtype), nullptr}; }
inline kernels::MutableRows rows_of(const TensorView& matrix) { return {matrix.data, matrix.strides[0] * size_of(matrix.dtype), nullptr}; }

/// The strides of a (G,K,N) weight; those of dimensions of size 1 are free and chosen to look dense.
kernels::Weights weights_of(const ConstTensorView& weight);

/// Every element of a matrix becomes +0, whatever its strides.
void clear_matrix(const Context& context, const TensorView& matrix);

/// Fails where two elements of a result share memory, or (three dimensions) where the strides cannot rule it out.
Status check_result_layout(std::string_view operation, std::string_view what, const ConstTensorView& result);
/// Fails where a result shares memory with an operand. Columns of one buffer side by side do not.
Status check_apart(std::string_view operation, std::string_view result_name, const ConstTensorView& result, std::string_view operand_name,
                   const ConstTensorView& operand);

}  // namespace plait::gmm_layout
