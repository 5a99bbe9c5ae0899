#include "support/layer_oracle_math.h"

#include <array>
#include <cmath>

#include "support/test_tensors.h"

namespace plait::test {

Matrix matrix_of(const ConstTensorView& t) {
  if (!t.defined()) return {};
  Matrix m(t.num_dims == 1 ? 1 : t.shape[0], t.num_dims == 1 ? t.shape[0] : t.shape[1]);
  for (int64_t i = 0; i < m.rows * m.columns; ++i) m.values[static_cast<size_t>(i)] = static_cast<float>(get(t, i));
  return m;
}

Matrix transposed(const Matrix& a) {
  Matrix t(a.columns, a.rows);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.columns; ++j) t.at(j, i) = a.at(i, j);
  }
  return t;
}

Matrix rows_of(const Matrix& a, const std::vector<int64_t>& indices) {
  Matrix m(static_cast<int64_t>(indices.size()), a.columns);
  for (int64_t i = 0; i < m.rows; ++i) {
    for (int64_t j = 0; j < m.columns; ++j) m.at(i, j) = a.at(indices[static_cast<size_t>(i)], j);
  }
  return m;
}

float rounded(float value, DType dtype) {
  if (dtype != DType::f16 && std::fabs(value) < 0x1p-126F) return std::copysign(0.0F, value);
  std::array<std::byte, 4> memory{};
  const TensorView one(memory.data(), dtype, {1});
  set(one, 0, value);
  return static_cast<float>(get(one, 0));
}

void round_all(Matrix& a, DType dtype) {
  for (float& value : a.values) value = rounded(value, dtype);
}

float chain(DType dtype, int64_t n, const float* a, int64_t step_a, const float* b, int64_t step_b) {
  float acc = 0;
  if (dtype != DType::bf16) {
    for (int64_t k = 0; k < n; ++k) acc = std::fma(a[k * step_a], b[k * step_b], acc);
    return acc;
  }
  for (int64_t k = 0; k < n; k += 2) {
    acc = k + 1 < n ? std::fma(a[(k + 1) * step_a], b[(k + 1) * step_b], acc) : std::fma(0.0F, 0.0F, acc);
    acc = std::fma(a[k * step_a], b[k * step_b], acc);
  }
  return acc;
}

Matrix multiply(DType dtype, const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.columns);
  for (int64_t i = 0; i < c.rows; ++i) {
    for (int64_t j = 0; j < c.columns; ++j) c.at(i, j) = chain(dtype, a.columns, a.values.data() + i * a.columns, 1, b.values.data() + j, b.columns);
  }
  return c;
}

float dot(const Matrix& a, int64_t i, const Matrix& b, int64_t j) {
  float sum = 0;
  for (int64_t block = 0; block < a.columns; block += 64) {
    std::array<float, 16> lanes{};
    for (int64_t c = block; c < block + 64 && c < a.columns; ++c) {
      float& lane = lanes[static_cast<size_t>(c % 16)];
      lane = std::fma(a.at(i, c), b.at(j, c), lane);
    }
    for (size_t width = 8; width > 0; width /= 2) {
      for (size_t l = 0; l < width; ++l) lanes[l] += lanes[l + width];
    }
    sum += lanes[0];
  }
  return sum;
}

MaybeRow add(const MaybeRow& a, const MaybeRow& b) {
  if (!a || !b) return a ? a : b;
  MaybeRow sum = a;
  for (size_t j = 0; j < sum->size(); ++j) (*sum)[j] += (*b)[j];
  return sum;
}

MaybeRow tree(int64_t low, int64_t high, const std::function<MaybeRow(int64_t expert)>& leaf) {
  if (high - low == 1) return leaf(low);
  const int64_t middle = low + (high - low) / 2;
  return add(tree(low, middle, leaf), tree(middle, high, leaf));
}

bool absent(float weight) { return std::fabs(weight) < 0x1p-126F; }

}  // namespace plait::test
