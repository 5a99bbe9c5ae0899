#include "ops/grouped_matmul_support.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace plait::test {
namespace {

/// Moves the elements of two or three dimensions one by one, bits untouched.
void copy_bits(const ConstTensorView& from, const TensorView& to) {
  if (from.num_dims > 1) {
    for (int64_t i = 0; i < from.shape[0]; ++i) copy_bits(from[i], to[i]);
    return;
  }
  for (int64_t i = 0; i < from.shape[0]; ++i) std::memcpy(to.at(i), from.at(i), static_cast<size_t>(size_of(from.dtype)));
}

}  // namespace

std::unique_ptr<Context> gmm_context(int threads, const std::string& kernel) {
  Result<std::unique_ptr<Context>> context = Context::create({.threads = threads, .kernel = kernel});
  EXPECT_TRUE(context.ok()) << context.status().to_string();
  return context.take();
}

void poison(const Context& context, int64_t bytes) {
  for (int repeat = 0; repeat < 3; ++repeat) {
    std::vector<std::unique_ptr<std::byte[]>> heap;
    std::vector<Buffer> arena;
    for (int64_t size : {bytes, 2 * bytes, bytes / 2 + 1}) {
      heap.emplace_back(new std::byte[static_cast<size_t>(size)]);
      std::memset(heap.back().get(), 0xff, static_cast<size_t>(size));
      arena.push_back(context.scratch(size).take());
      std::memset(arena.back().get(), 0xff, static_cast<size_t>(size));
    }
  }
}

Tensor blank_in_layout(DType dtype, std::initializer_list<int64_t> shape, Layout layout) {
  TensorView dense(nullptr, dtype, shape);
  int last = dense.num_dims - 1;
  int64_t blocks = dense.num_dims == 3 ? dense.shape[0] : 1;
  int64_t rows = dense.shape[last - 1];
  int64_t columns = dense.shape[last];
  int64_t row_stride = columns, column_stride = 1, block_stride = rows * columns;
  if (layout == Layout::padded_rows) row_stride = columns + 5;
  if (layout == Layout::transposed) row_stride = 1, column_stride = rows;
  if (layout == Layout::spread) column_stride = 3, row_stride = 3 * columns + 1;
  if (layout != Layout::dense && layout != Layout::transposed) block_stride = rows * row_stride + 7;
  Tensor base = make_tensor(dtype, {blocks * block_stride + 1});
  TensorView view = dense;
  view.data = base.view.data;
  view.strides[static_cast<size_t>(last)] = column_stride;
  view.strides[static_cast<size_t>(last - 1)] = row_stride;
  if (last == 2) view.strides[0] = block_stride;
  if (layout == Layout::reversed && rows > 0) {
    view.data += (rows - 1) * row_stride * size_of(dtype);
    view.strides[static_cast<size_t>(last - 1)] = -row_stride;
  }
  return {base.buffer, view};
}

Tensor in_layout(const Tensor& dense, Layout layout) {
  const TensorView& v = dense.view;
  Tensor t = v.num_dims == 2 ? blank_in_layout(v.dtype, {v.shape[0], v.shape[1]}, layout)
                             : blank_in_layout(v.dtype, {v.shape[0], v.shape[1], v.shape[2]}, layout);
  copy_bits(v, t.view);
  return t;
}

namespace {

double at(const ConstTensorView& matrix, int64_t i, int64_t j) {
  ConstTensorView element = matrix;
  element.data = matrix.at(i, j);
  element.num_dims = 1;
  element.shape[0] = 1;
  return get(element, 0);
}

void add_product(OracleElement& e, double a, double b) {
  e.value += a * b;
  e.magnitude += std::fabs(a * b);
  e.inputs += std::fabs(a) + std::fabs(b);
  ++e.terms;
}

}  // namespace

OracleElement oracle_forward(const ConstTensorView& x, const ConstTensorView& weight, const std::vector<int64_t>& counts, const ConstTensorView& bias,
                             int64_t m, int64_t n) {
  OracleElement e;
  int64_t end = 0;
  for (size_t g = 0; g < counts.size(); ++g) {
    end += counts[g];
    if (m >= end) continue;
    ConstTensorView w = weight[static_cast<int64_t>(g)];
    for (int64_t k = 0; k < x.shape[1]; ++k) add_product(e, at(x, m, k), at(w, k, n));
    if (bias.defined()) add_product(e, at(bias, static_cast<int64_t>(g), n), 1);
    return e;
  }
  return e;
}

OracleElement oracle_dw(const ConstTensorView& x, const ConstTensorView& dy, const std::vector<int64_t>& counts, int64_t g, int64_t k, int64_t n) {
  OracleElement e;
  int64_t begin = 0;
  for (int64_t i = 0; i < g; ++i) begin += counts[static_cast<size_t>(i)];
  for (int64_t m = begin; m < begin + counts[static_cast<size_t>(g)]; ++m) add_product(e, at(x, m, k), at(dy, m, n));
  return e;
}

double allowed_error(const OracleElement& e, DType type) {
  double u = std::ldexp(1.0, -24);
  auto terms = static_cast<double>(e.terms);
  double gamma = terms * u / (1 - terms * u);
  double mantissa = type == DType::f32 ? 24 : type == DType::bf16 ? 8 : 11;
  double half_ulp = std::ldexp(std::fabs(e.value), -static_cast<int>(mantissa)) + (type == DType::f16 ? std::ldexp(1.0, -25) : 0);
  return gamma * e.magnitude + std::ldexp(terms + e.inputs, -126) + half_ulp * 1.001;
}

Status gmm(const Context& context, const Tensor& x, const Tensor& weight, const std::vector<int64_t>& list, const Tensor& y,
           const GroupedMatmulOptions& options, const Tensor& bias) {
  return grouped_matmul(context, x, weight, list, bias, y, options);
}

}  // namespace plait::test
