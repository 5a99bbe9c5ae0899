#pragma once
/// grouped_matmul (GMM): one matrix multiplication per group of rows. docs/operators.md section 3.

#include <cstdint>
#include <span>
#include <vector>

#include "plait/context.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait {

enum class GroupListType : int { cumulative = 0, counts = 1, pairs = 2 };

/// Rows per group (`num_groups` numbers) from any of the three list types; `max_rows` = M.
/// cumulative: ends, ascending. counts: as they are. pairs: (group, count), groups strictly ascending, a missing group is empty.
/// Errors name the index and both values: wrong length, negative count, decreasing end, sum greater than max_rows.
/// Example: group_counts({{2, 3}}, GroupListType::cumulative, 2, 4) gives {2, 1}.
Result<std::vector<int64_t>> group_counts(std::span<const int64_t> list, GroupListType type, int64_t num_groups, int64_t max_rows);

struct GroupedMatmulOptions {
  GroupListType group_list_type = GroupListType::counts;
  bool fused = true;  ///< false: the loop y[start:end] = x[start:end] @ weight[g], same bits
};

/// M-grouped: x (M,K), weight (G,K,N) in any strides, bias (G,N) or undefined -> y (M,N). Rows beyond the sum of the list are zeros.
/// x, weight and y share one floating type (y may be f32). Accumulates in float32, rounds once.
Status grouped_matmul(const Context& context, const ConstTensorView& x, const ConstTensorView& weight, std::span<const int64_t> group_list,
                      const ConstTensorView& bias, const TensorView& y, const GroupedMatmulOptions& options = {});

/// K-grouped: x (M,K), dy (M,N) -> dw (G,K,N), dw[g] = x_g^T dy_g; an empty group's block is zeros.
/// With `accumulate`, dw is float32 and is added to; an empty group's block stays as it is.
Status grouped_matmul_k(const Context& context, const ConstTensorView& x, const ConstTensorView& dy, std::span<const int64_t> group_list,
                        const TensorView& dw, bool accumulate, const GroupedMatmulOptions& options = {});

/// dbias (G,N) = sums of the rows of dy (M,N) per group, float32, rows ascending; accumulate as above.
Status grouped_bias_gradient(const Context& context, const ConstTensorView& dy, std::span<const int64_t> group_list, const TensorView& dbias,
                             bool accumulate, const GroupedMatmulOptions& options = {});

/// No grouping: y[i] (M_i,N_i) = x[i] (M_i,K_i) @ weight[i] (K_i,N_i) (+ bias[i] (N_i); `bias` may be empty).
Status grouped_matmul_lists(const Context& context, std::span<const ConstTensorView> x, std::span<const ConstTensorView> weight,
                            std::span<const ConstTensorView> bias, std::span<const TensorView> y);

/// Gradients of the M-grouped form. An undefined view skips that gradient.
struct GroupedMatmulGradients {
  TensorView dx = {};       ///< (M,K); rows beyond the list are zeros
  TensorView dw = {};       ///< (G,K,N)
  TensorView dbias = {};    ///< (G,N)
  bool accumulate = false;  ///< dw and dbias are float32 and are added to
};
Status grouped_matmul_backward(const Context& context, const ConstTensorView& dy, const ConstTensorView& x, const ConstTensorView& weight,
                               std::span<const int64_t> group_list, const GroupedMatmulGradients& gradients,
                               const GroupedMatmulOptions& options = {});

}  // namespace plait
