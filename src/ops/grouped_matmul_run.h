#pragma once
/// Checked problems handed to the kernels. Arguments are trusted; counts are rows per group.

#include <cstdint>
#include <span>

#include "kernels/rows.h"
#include "plait/context.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait::gmm_run {

/// Sum of the counts.
int64_t num_rows(std::span<const int64_t> counts);

Status m_grouped(const Context& context, const ConstTensorView& x, const ConstTensorView& weight, std::span<const int64_t> counts,
                 const ConstTensorView& bias, const TensorView& y, bool fused);
Status k_grouped(const Context& context, const ConstTensorView& x, const ConstTensorView& dy, std::span<const int64_t> counts, const TensorView& dw,
                 bool accumulate, bool fused);
Status bias_gradient(const Context& context, const ConstTensorView& dy, std::span<const int64_t> counts, const TensorView& dbias, bool accumulate);
/// The same for rows of dbias' columns that lie anywhere.
void bias_gradient(const Context& context, const kernels::Rows& dy, DType dtype, std::span<const int64_t> counts, const TensorView& dbias,
                   bool accumulate);

}  // namespace plait::gmm_run
