#include "moe/row_sums.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_set.h"

namespace plait::moe {
namespace {

/// Columns of one task: their accumulators stay in the first-level cache.
constexpr int64_t block_columns = 256;

struct Problem {
  const kernels::ElementwiseKernels& kernels;
  const kernels::Rows& rows;
  DType dtype;
  int64_t columns;
  const float* scales;
  AbsentRows absent;
  const TensorView& sums;
  bool accumulate;
};

void write_block(const Problem& p, int64_t group, int64_t column, const float* acc, int64_t n) {
  std::array<std::byte, block_columns * sizeof(float)> rounded;
  if (!p.accumulate) p.kernels.store(p.sums.dtype, acc, rounded.data(), n);
  const int64_t bytes = size_of(p.sums.dtype);
  for (int64_t j = 0; j < n; ++j) {
    std::byte* to = p.sums.at(group, column + j);
    if (p.accumulate) {
      *reinterpret_cast<float*>(to) += acc[j];
    } else {
      std::copy_n(rounded.data() + j * bytes, bytes, to);
    }
  }
}

void sum_block(const Problem& p, int64_t group, int64_t begin_row, int64_t end_row, int64_t column) {
  if (p.accumulate && begin_row == end_row) return;
  const int64_t n = std::min(block_columns, p.columns - column);
  std::array<float, block_columns> acc{};
  for (int64_t i = begin_row; i < end_row; ++i) {
    const float scale = p.scales[i];
    if (p.absent == AbsentRows::skip && kernels::is_absent(scale)) continue;
    p.kernels.scale_add(p.dtype, scale, p.rows[i] + column * size_of(p.dtype), acc.data(), n);
  }
  write_block(p, group, column, acc.data(), n);
}

}  // namespace

Status scaled_row_sums(const Context& context, const kernels::Rows& rows, DType dtype, const float* scales, std::span<const int64_t> group_rows,
                       AbsentRows absent, const TensorView& sums, bool accumulate) {
  const Problem problem{*context.kernels().elementwise, rows, dtype, sums.shape[1], scales, absent, sums, accumulate};
  std::vector<int64_t> begins{0};
  for (int64_t count : group_rows) begins.push_back(begins.back() + count);
  const int64_t blocks = (sums.shape[1] + block_columns - 1) / block_columns;
  context.pool().parallel_for(static_cast<int64_t>(group_rows.size()) * blocks, [&](int64_t task, int) {
    const auto group = static_cast<size_t>(task / blocks);
    sum_block(problem, task / blocks, begins[group], begins[group + 1], task % blocks * block_columns);
  });
  return {};
}

}  // namespace plait::moe
