#pragma once
/// Sums of scaled rows: the gradients of a bias behind a weight and of the shared expert's gate.

#include <cstdint>
#include <span>

#include "kernels/rows.h"
#include "plait/context.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait::moe {

/// What a row does whose scale makes its entry absent (numerics.md section 4): nothing, or its product like any other.
enum class AbsentRows { skip, add };

/// sums (G,N): per group, float32 acc += round32(scale * row) from +0, rows ascending; rounded once to the type of `sums`, or with
/// `accumulate` added once to float32 (a group without rows stays untouched). A rows of N elements of `dtype`, A scales.
Status scaled_row_sums(const Context& context, const kernels::Rows& rows, DType dtype, const float* scales, std::span<const int64_t> group_rows,
                       AbsentRows absent, const TensorView& sums, bool accumulate);

}  // namespace plait::moe
