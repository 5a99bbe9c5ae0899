#pragma once
/// What the grouped matmuls refuse, before anything is written. Each check names the values and the rule.

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "plait/grouped_matmul.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait::gmm_check {

/// Number of dimensions, floating type, and sizes >= 1 from dimension `first_nonzero` on.
Status operand(std::string_view operation, std::string_view what, const ConstTensorView& view, int num_dims, int first_nonzero);
/// One type for both.
Status same_type(std::string_view operation, std::string_view what, const ConstTensorView& view, std::string_view other_name,
                 const ConstTensorView& other);
/// A result: exact shape, the operands' type or f32 (with `accumulate` f32 only), no element on another.
Status result(std::string_view operation, std::string_view what, const ConstTensorView& view, std::initializer_list<int64_t> shape,
              DType operand_type, bool accumulate);

/// y = x * weight (+ bias): everything but the group list.
Status m_grouped(std::string_view operation, const ConstTensorView& x, const ConstTensorView& weight, const ConstTensorView& bias,
                 const TensorView& y);
/// dw = x^T dy. The number of groups is dw's.
Status k_grouped(const ConstTensorView& x, const ConstTensorView& dy, const TensorView& dw, bool accumulate);
/// dbias = sums of dy's rows.
Status bias_gradient(const ConstTensorView& dy, const TensorView& dbias, bool accumulate);
/// The gradients (where defined) have the weight's groups, rows and columns, and lie on none of backward's operands or each other.
Status gradients(const ConstTensorView& dy, const ConstTensorView& x, const ConstTensorView& weight, const GroupedMatmulGradients& gradients);

}  // namespace plait::gmm_check
