#include "observe/bench_gmm_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_set.h"
#include "plait/grouped_matmul.h"

namespace plait {
namespace {

constexpr int64_t fill_block = 4096;      // elements per task
constexpr double full_check_flops = 4e6;  // a few milliseconds of the reference kernels
constexpr int64_t sample_rows = 4, sample_columns = 8;

/// Uniform in +-[1/16, 1): no zeros, which memory may treat differently.
Status fill(const Context& context, const TensorView& tensor, uint64_t seed) {
  const kernels::ElementwiseKernels& ew = *context.kernels().elementwise;
  int64_t n = tensor.num_elements();
  context.pool().parallel_for((n + fill_block - 1) / fill_block, [&](int64_t block, int) {
    float values[fill_block];
    uint64_t state = seed + static_cast<uint64_t>(block) * 0x9e3779b97f4a7c15U;
    for (float& v : values) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      auto bits = static_cast<uint32_t>(state >> 32);
      float magnitude = 0x1p-4F + static_cast<float>(bits >> 8) * 0x1p-24F * (1 - 0x1p-4F);
      v = bits & 1 ? magnitude : -magnitude;
    }
    int64_t begin = block * fill_block;
    ew.store(tensor.dtype, values, tensor.data + begin * size_of(tensor.dtype), std::min(fill_block, n - begin));
  });
  return {};
}

Status make_filled(const Context& context, DType dtype, std::initializer_list<int64_t> shape, uint64_t seed, Tensor* tensor) {
  PLAIT_ASSIGN_OR_RETURN(*tensor, context.empty(dtype, shape));
  return fill(context, tensor->view, seed);
}

/// Items [begin, end) of dimension d.
template <typename View>
View narrowed(View view, int d, int64_t begin, int64_t end) {
  view.data += begin * view.strides[d] * size_of(view.dtype);
  view.shape[d] = end - begin;
  return view;
}

/// One place more in front: a matrix as a problem of one group.
ConstTensorView one_group(const ConstTensorView& matrix) {
  ConstTensorView v = matrix;
  v.num_dims = 3;
  v.shape = {1, matrix.shape[0], matrix.shape[1]};
  v.strides = {0, matrix.strides[0], matrix.strides[1]};
  return v;
}

struct Range {
  int64_t begin, end;
};
/// All of [0, n), or its first and its last `most` items.
std::vector<Range> edges(int64_t n, int64_t most, bool all) {
  if (all || n <= 2 * most) return {{0, n}};
  return {{0, most}, {n - most, n}};
}

/// Two matrices of one type, bit by bit. `what` names the operator and the group.
Status compare(const ConstTensorView& found, const ConstTensorView& expected, const std::string& what, int64_t first_row, int64_t first_column) {
  auto bytes = static_cast<size_t>(size_of(found.dtype));
  for (int64_t i = 0; i < found.shape[0]; ++i) {
    for (int64_t j = 0; j < found.shape[1]; ++j) {
      if (std::memcmp(found.at(i, j), expected.at(i, j), bytes) == 0) continue;
      uint32_t a = 0;
      uint32_t b = 0;
      std::memcpy(&a, found.at(i, j), bytes);
      std::memcpy(&b, expected.at(i, j), bytes);
      return Status::internal(fmt::format("bench gmm: {}: element ({}, {}) has the bits {:#x}, the reference kernels give {:#x}; nothing was timed",
                                          what, first_row + i, first_column + j, a, b));
    }
  }
  return {};
}

}  // namespace

std::string describe(const GmmCase& shape) {
  return fmt::format("H {} I {}, {} experts x {} rows, {}{}{}", shape.hidden, shape.intermediate, shape.num_experts, shape.rows_per_expert,
                     name(shape.dtype), shape.transposed_weights ? ", weights [E,N,K]" : "",
                     shape.skew > 0 ? fmt::format(", Zipf {}", shape.skew) : "");
}

Result<BenchGmmCase> BenchGmmCase::create(const Context& context, const GmmCase& shape) {
  BenchGmmCase c;
  c.shape_ = shape;
  c.num_columns_ = 2 * shape.intermediate;
  c.counts_ = gmm_case_rows(shape);
  c.begins_.assign(c.counts_.size() + 1, 0);
  std::partial_sum(c.counts_.begin(), c.counts_.end(), c.begins_.begin() + 1);
  c.total_rows_ = c.begins_.back();
  int64_t rows = c.total_rows_, k = shape.hidden, n = c.num_columns_, e = shape.num_experts;
  PLAIT_RETURN_IF_ERROR(make_filled(context, shape.dtype, {rows, k}, 1, &c.x_));
  if (shape.transposed_weights) {
    PLAIT_RETURN_IF_ERROR(make_filled(context, shape.dtype, {e, n, k}, 2, &c.weight_));
    c.weight_view_ = c.weight_.view.transposed(1, 2);
  } else {
    PLAIT_RETURN_IF_ERROR(make_filled(context, shape.dtype, {e, k, n}, 2, &c.weight_));
    c.weight_view_ = c.weight_.view;
  }
  PLAIT_RETURN_IF_ERROR(make_filled(context, shape.dtype, {rows, n}, 3, &c.dy_));
  PLAIT_RETURN_IF_ERROR(make_filled(context, shape.dtype, {rows, n}, 4, &c.y_));
  PLAIT_RETURN_IF_ERROR(make_filled(context, shape.dtype, {rows, k}, 5, &c.dx_));
  PLAIT_RETURN_IF_ERROR(make_filled(context, shape.dtype, {e, k, n}, 6, &c.dw_));
  return c;
}

Status BenchGmmCase::run(const Context& context, size_t op) const {
  if (op == 0) return grouped_matmul(context, x_, weight_view_, counts_, {}, y_);
  if (op == 1) return grouped_matmul(context, dy_, weight_view_.transposed(1, 2), counts_, {}, dx_);
  return grouped_matmul_k(context, x_, dy_, counts_, dw_, false);
}

double BenchGmmCase::bytes(size_t op) const {
  int64_t with_rows = std::count_if(counts_.begin(), counts_.end(), [](int64_t rows) { return rows > 0; });
  int64_t blocks = op == 2 ? shape_.num_experts : with_rows;  // dw's empty blocks are cleared
  int64_t elements = total_rows_ * (shape_.hidden + num_columns_) + blocks * shape_.hidden * num_columns_;
  return static_cast<double>(elements * size_of(shape_.dtype));
}

std::vector<size_t> BenchGmmCase::sampled_groups() const {
  std::vector<size_t> with_rows;
  for (size_t g = 0; g < counts_.size(); ++g) {
    if (counts_[g] > 0) with_rows.push_back(g);
  }
  if (with_rows.size() <= 3) return with_rows;
  return {with_rows.front(), with_rows[with_rows.size() / 2], with_rows.back()};
}

Status BenchGmmCase::check(const Context& reference, size_t op) const {
  if (op == 0) return check_product(reference, op, x_, weight_view_, y_);
  if (op == 1) return check_product(reference, op, dy_, weight_view_.transposed(1, 2), dx_);
  return check_dw(reference);
}

Status BenchGmmCase::check_product(const Context& reference, size_t op, const ConstTensorView& x, const ConstTensorView& weight,
                                   const ConstTensorView& y) const {
  bool all = flops() <= full_check_flops;
  for (size_t g : sampled_groups()) {
    ConstTensorView block = weight[static_cast<int64_t>(g)];
    for (Range rows : edges(counts_[g], sample_rows, all)) {
      rows.begin += begins_[g];
      rows.end += begins_[g];
      for (Range columns : edges(y.shape[1], sample_columns, all)) {
        int64_t count[] = {rows.end - rows.begin};
        PLAIT_ASSIGN_OR_RETURN(Tensor expected, reference.empty(y.dtype, {count[0], columns.end - columns.begin}));
        PLAIT_RETURN_IF_ERROR(
            grouped_matmul(reference, x.slice(rows.begin, rows.end), one_group(narrowed(block, 1, columns.begin, columns.end)), count, {}, expected));
        ConstTensorView found = narrowed(y.slice(rows.begin, rows.end), 1, columns.begin, columns.end);
        std::string what = fmt::format("{}, {}", describe(shape_), ops[op]);
        PLAIT_RETURN_IF_ERROR(compare(found, expected, what, rows.begin, columns.begin));
      }
    }
  }
  return {};
}

Status BenchGmmCase::check_dw(const Context& reference) const {
  bool all = flops() <= full_check_flops;
  for (size_t g : sampled_groups()) {
    ConstTensorView x = x_.view.slice(begins_[g], begins_[g + 1]);
    ConstTensorView dy = dy_.view.slice(begins_[g], begins_[g + 1]);
    for (Range rows : edges(shape_.hidden, sample_columns, all)) {
      for (Range columns : edges(num_columns_, sample_columns, all)) {
        PLAIT_ASSIGN_OR_RETURN(Tensor expected, reference.empty(shape_.dtype, {1, rows.end - rows.begin, columns.end - columns.begin}));
        PLAIT_RETURN_IF_ERROR(grouped_matmul_k(reference, narrowed(x, 1, rows.begin, rows.end), narrowed(dy, 1, columns.begin, columns.end),
                                               std::span(&counts_[g], 1), expected, false));
        ConstTensorView found = dw_.view[static_cast<int64_t>(g)];
        found = narrowed(narrowed(found, 0, rows.begin, rows.end), 1, columns.begin, columns.end);
        std::string what = fmt::format("{}, dw of expert {}", describe(shape_), g);
        PLAIT_RETURN_IF_ERROR(compare(found, expected.view[0], what, rows.begin, columns.begin));
      }
    }
  }
  return {};
}

}  // namespace plait
