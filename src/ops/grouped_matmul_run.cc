#include "ops/grouped_matmul_run.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "kernels/elementwise.h"
#include "kernels/grouped_gemm.h"
#include "kernels/kernel_set.h"
#include "ops/dense_rows.h"
#include "ops/grouped_matmul_layout.h"
#include "plait/counters.h"

namespace plait::gmm_run {
namespace {

/// Runs the whole problem, or (unfused) one group at a time; `narrow(part, group, first_row)` points the operands at a group's part.
template <typename Problem, typename Narrow, typename Run>
Status run_groups(const Problem& problem, bool fused, Narrow narrow, Run run) {
  if (fused) return run(problem);
  int64_t first_row = 0;
  for (size_t g = 0; g < problem.counts.size(); ++g) {
    Problem part = problem;
    part.counts = problem.counts.subspan(g, 1);
    narrow(part, static_cast<int64_t>(g), first_row);
    PLAIT_RETURN_IF_ERROR(run(part));
    first_row += problem.counts[g];
  }
  return {};
}

Status run_m_grouped(const Context& context, const kernels::MGroupedGemm& problem, bool fused) {
  auto narrow = [](kernels::MGroupedGemm& part, int64_t group, int64_t first_row) {
    part.x = part.x.from(first_row);
    part.y = part.y.from(first_row);
    part.weights.data += group * part.weights.group_stride * size_of(part.in);
    if (part.bias) part.bias += group * part.bias_group_stride * size_of(part.bias_type);
  };
  return run_groups(problem, fused, narrow, [&](const kernels::MGroupedGemm& part) { return kernels::m_grouped_gemm(context, part); });
}

/// y = x * weight (+ bias) for all rows of x, which the counts cover.
Status multiply(const Context& context, const ConstTensorView& x, const ConstTensorView& weight, std::span<const int64_t> counts,
                const ConstTensorView& bias, const TensorView& y, bool fused) {
  PLAIT_ASSIGN_OR_RETURN(DenseInput dense_x, DenseInput::make(context, x));
  PLAIT_ASSIGN_OR_RETURN(DenseInput dense_bias, DenseInput::make(context, bias));
  PLAIT_ASSIGN_OR_RETURN(DenseOutput dense_y, DenseOutput::make(context, y));
  kernels::MGroupedGemm problem{.in = x.dtype,
                                .out = y.dtype,
                                .k = x.shape[1],
                                .n = y.shape[1],
                                .counts = counts,
                                .x = gmm_layout::rows_of(dense_x.view),
                                .weights = gmm_layout::weights_of(weight),
                                .bias = dense_bias.view.data,
                                .bias_type = bias.dtype,
                                .bias_group_stride = dense_bias.view.strides[0],
                                .y = gmm_layout::rows_of(dense_y.view)};
  context.recorder().add(Counter::matmul_flops, 2 * x.shape[0] * x.shape[1] * y.shape[1]);
  PLAIT_RETURN_IF_ERROR(run_m_grouped(context, problem, fused));
  dense_y.finish(context);
  return {};
}

/// Columns per task of the bias gradient; float32 sums of one task fit a corner of the first-level cache.
constexpr int64_t bias_columns = 256;

/// dbias[columns] = or += the sums.
void put_sums(const kernels::ElementwiseKernels& ew, const float* sums, const TensorView& dbias_row, bool accumulate) {
  int64_t n = dbias_row.shape[0];
  bool contiguous = dbias_row.strides[0] == 1 || n == 1;
  if (accumulate && contiguous) return ew.add(DType::f32, reinterpret_cast<const std::byte*>(sums), dbias_row.as<float>(), n);
  if (contiguous) return ew.store(dbias_row.dtype, sums, dbias_row.data, n);
  for (int64_t j = 0; j < n; ++j) {
    if (accumulate) {
      ew.add(DType::f32, reinterpret_cast<const std::byte*>(sums + j), reinterpret_cast<float*>(dbias_row.at(j)), 1);
    } else {
      ew.store(dbias_row.dtype, sums + j, dbias_row.at(j), 1);
    }
  }
}

}  // namespace

int64_t num_rows(std::span<const int64_t> counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

Status m_grouped(const Context& context, const ConstTensorView& x, const ConstTensorView& weight, std::span<const int64_t> counts,
                 const ConstTensorView& bias, const TensorView& y, bool fused) {
  int64_t rows = num_rows(counts);
  if (rows > 0) PLAIT_RETURN_IF_ERROR(multiply(context, x.slice(0, rows), weight, counts, bias, y.slice(0, rows), fused));
  gmm_layout::clear_matrix(context, y.slice(rows, y.shape[0]));
  return {};
}

Status k_grouped(const Context& context, const ConstTensorView& x, const ConstTensorView& dy, std::span<const int64_t> counts, const TensorView& dw,
                 bool accumulate, bool fused) {
  int64_t rows = num_rows(counts);
  PLAIT_ASSIGN_OR_RETURN(DenseInput dense_x, DenseInput::make(context, x.slice(0, rows)));
  PLAIT_ASSIGN_OR_RETURN(DenseInput dense_dy, DenseInput::make(context, dy.slice(0, rows)));
  kernels::KGroupedGemm problem{.in = x.dtype,
                                .out = dw.dtype,
                                .k = x.shape[1],
                                .n = dy.shape[1],
                                .counts = counts,
                                .x = gmm_layout::rows_of(dense_x.view),
                                .dy = gmm_layout::rows_of(dense_dy.view),
                                .dw = dw.data,
                                .dw_group_stride = dw.strides[0],
                                .dw_k_stride = dw.strides[1],
                                .dw_n_stride = dw.strides[2],
                                .accumulate = accumulate};
  if (dw.shape[2] == 1) problem.dw_n_stride = 1;
  context.recorder().add(Counter::matmul_flops, 2 * rows * x.shape[1] * dy.shape[1]);
  auto narrow = [](kernels::KGroupedGemm& part, int64_t group, int64_t first_row) {
    part.x = part.x.from(first_row);
    part.dy = part.dy.from(first_row);
    part.dw += group * part.dw_group_stride * size_of(part.out);
  };
  return run_groups(problem, fused, narrow, [&](const auto& p) { return kernels::k_grouped_gemm(context, p); });
}

Status bias_gradient(const Context& context, const ConstTensorView& dy, std::span<const int64_t> counts, const TensorView& dbias, bool accumulate) {
  PLAIT_ASSIGN_OR_RETURN(DenseInput dense, DenseInput::make(context, dy.slice(0, num_rows(counts))));
  bias_gradient(context, gmm_layout::rows_of(dense.view), dy.dtype, counts, dbias, accumulate);
  return {};
}

void bias_gradient(const Context& context, const kernels::Rows& dy, DType dtype, std::span<const int64_t> counts, const TensorView& dbias,
                   bool accumulate) {
  const kernels::ElementwiseKernels& ew = *context.kernels().elementwise;
  std::vector<int64_t> begins(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), begins.begin() + 1);
  int64_t num_columns = dbias.shape[1];
  int64_t num_blocks = (num_columns + bias_columns - 1) / bias_columns;
  context.pool().parallel_for(static_cast<int64_t>(counts.size()) * num_blocks, [&](int64_t task, int) {
    auto group = static_cast<size_t>(task / num_blocks);
    if (accumulate && counts[group] == 0) return;
    int64_t column = task % num_blocks * bias_columns;
    int64_t n = std::min(bias_columns, num_columns - column);
    float sums[bias_columns] = {};
    for (int64_t row = begins[group]; row < begins[group + 1]; ++row) ew.add(dtype, dy[row] + column * size_of(dtype), sums, n);
    TensorView target = dbias[static_cast<int64_t>(group)];
    put_sums(ew, sums, target.slice(column, column + n), accumulate);
  });
}

}  // namespace plait::gmm_run
