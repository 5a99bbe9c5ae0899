#include "plait/grouped_matmul.h"

#include <fmt/format.h>

#include "base/status_macros.h"
#include "ops/dense_rows.h"
#include "ops/grouped_matmul_check.h"
#include "ops/grouped_matmul_layout.h"
#include "ops/grouped_matmul_run.h"

namespace plait {
namespace {

Status check_list_item(size_t i, const ConstTensorView& x, const ConstTensorView& weight, const ConstTensorView& bias, const TensorView& y) {
  std::string operation = fmt::format("grouped_matmul_lists, item {}", i);
  PLAIT_RETURN_IF_ERROR(gmm_check::operand(operation, "weight", weight, 2, 0));
  if (bias.defined()) PLAIT_RETURN_IF_ERROR(gmm_check::operand(operation, "bias", bias, 1, 0));
  return gmm_check::m_grouped(operation, x, as_group(weight), as_group(bias), y);
}

/// A result must not be an operand of another item either.
Status check_list_results(std::span<const ConstTensorView> x, std::span<const ConstTensorView> weight, std::span<const TensorView> y) {
  for (size_t i = 0; i < y.size(); ++i) {
    for (size_t j = 0; j < y.size(); ++j) {
      if (i == j) continue;
      std::string operation = fmt::format("grouped_matmul_lists, items {} and {}", i, j);
      PLAIT_RETURN_IF_ERROR(gmm_layout::check_apart(operation, "y", y[i], "x", x[j]));
      PLAIT_RETURN_IF_ERROR(gmm_layout::check_apart(operation, "y", y[i], "weight", weight[j]));
      if (i < j) PLAIT_RETURN_IF_ERROR(gmm_layout::check_apart(operation, "y", y[i], "y", y[j]));
    }
  }
  return {};
}

}  // namespace

Status grouped_matmul(const Context& context, const ConstTensorView& x, const ConstTensorView& weight, std::span<const int64_t> group_list,
                      const ConstTensorView& bias, const TensorView& y, const GroupedMatmulOptions& options) {
  PLAIT_RETURN_IF_ERROR(gmm_check::m_grouped("grouped_matmul", x, weight, bias, y));
  PLAIT_ASSIGN_OR_RETURN(std::vector<int64_t> counts, group_counts(group_list, options.group_list_type, weight.shape[0], x.shape[0]));
  return gmm_run::m_grouped(context, x, weight, counts, bias, y, options.fused);
}

Status grouped_matmul_k(const Context& context, const ConstTensorView& x, const ConstTensorView& dy, std::span<const int64_t> group_list,
                        const TensorView& dw, bool accumulate, const GroupedMatmulOptions& options) {
  PLAIT_RETURN_IF_ERROR(gmm_check::k_grouped(x, dy, dw, accumulate));
  PLAIT_ASSIGN_OR_RETURN(std::vector<int64_t> counts, group_counts(group_list, options.group_list_type, dw.shape[0], x.shape[0]));
  return gmm_run::k_grouped(context, x, dy, counts, dw, accumulate, options.fused);
}

Status grouped_bias_gradient(const Context& context, const ConstTensorView& dy, std::span<const int64_t> group_list, const TensorView& dbias,
                             bool accumulate, const GroupedMatmulOptions& options) {
  PLAIT_RETURN_IF_ERROR(gmm_check::bias_gradient(dy, dbias, accumulate));
  PLAIT_ASSIGN_OR_RETURN(std::vector<int64_t> counts, group_counts(group_list, options.group_list_type, dbias.shape[0], dy.shape[0]));
  return gmm_run::bias_gradient(context, dy, counts, dbias, accumulate);
}

Status grouped_matmul_lists(const Context& context, std::span<const ConstTensorView> x, std::span<const ConstTensorView> weight,
                            std::span<const ConstTensorView> bias, std::span<const TensorView> y) {
  if (weight.size() != x.size() || y.size() != x.size() || (!bias.empty() && bias.size() != x.size())) {
    return Status::invalid_argument(
        fmt::format("grouped_matmul_lists: {} of x, {} of weight, {} of bias and {} of y; the lists pair up item by item (bias may be empty)",
                    x.size(), weight.size(), bias.size(), y.size()));
  }
  auto bias_of = [&](size_t i) { return bias.empty() ? ConstTensorView() : bias[i]; };
  for (size_t i = 0; i < x.size(); ++i) PLAIT_RETURN_IF_ERROR(check_list_item(i, x[i], weight[i], bias_of(i), y[i]));
  PLAIT_RETURN_IF_ERROR(check_list_results(x, weight, y));
  for (size_t i = 0; i < x.size(); ++i) {
    int64_t counts[] = {x[i].shape[0]};
    PLAIT_RETURN_IF_ERROR(gmm_run::m_grouped(context, x[i], as_group(weight[i]), counts, as_group(bias_of(i)), y[i], true));
  }
  return {};
}

Status grouped_matmul_backward(const Context& context, const ConstTensorView& dy, const ConstTensorView& x, const ConstTensorView& weight,
                               std::span<const int64_t> group_list, const GroupedMatmulGradients& gradients, const GroupedMatmulOptions& options) {
  PLAIT_RETURN_IF_ERROR(gmm_check::gradients(dy, x, weight, gradients));
  PLAIT_ASSIGN_OR_RETURN(std::vector<int64_t> counts, group_counts(group_list, options.group_list_type, weight.shape[0], dy.shape[0]));
  const auto& [dx, dw, dbias, accumulate] = gradients;
  // Copied here once, where its rows are not contiguous, instead of by each product.
  int64_t rows = gmm_run::num_rows(counts);
  PLAIT_ASSIGN_OR_RETURN(DenseInput dense, DenseInput::make(context, dy.slice(0, rows)));
  if (dw.defined()) PLAIT_RETURN_IF_ERROR(gmm_run::k_grouped(context, x, dense.view, counts, dw, accumulate, options.fused));
  if (dbias.defined()) PLAIT_RETURN_IF_ERROR(gmm_run::bias_gradient(context, dense.view, counts, dbias, accumulate));
  if (dx.defined()) PLAIT_RETURN_IF_ERROR(gmm_run::m_grouped(context, dense.view, weight.transposed(1, 2), counts, {}, dx, options.fused));
  return {};
}

}  // namespace plait
