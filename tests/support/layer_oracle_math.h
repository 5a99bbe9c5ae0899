#pragma once
/// Scalar pieces of the bit contract for the exact oracle: matrices of floats that hold values of a type, chains, dots, the tree.

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "plait/tensor.h"

namespace plait::test {

/// A row-major matrix of values, each representable in the type it was rounded to.
struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<float> values;

  Matrix() = default;
  Matrix(int64_t r, int64_t c) : rows(r), columns(c), values(static_cast<size_t>(r * c)) {}
  float& at(int64_t i, int64_t j) { return values[static_cast<size_t>(i * columns + j)]; }
  float at(int64_t i, int64_t j) const { return values[static_cast<size_t>(i * columns + j)]; }
  bool empty() const { return values.empty(); }
};

/// The values of a one- or two-dimensional tensor, or of item `item` of a three-dimensional one; empty for an undefined one.
Matrix matrix_of(const ConstTensorView& t);
Matrix transposed(const Matrix& a);
/// Rows `indices` of a.
Matrix rows_of(const Matrix& a, const std::vector<int64_t>& indices);

/// Rounds to a type and back, nearest even; float32 and bf16 denormals become zero.
float rounded(float value, DType dtype);
void round_all(Matrix& a, DType dtype);

/// sum over k of a[k] * b[k], one chain: k ascending, or for bf16 in pairs, the odd element first. `step`: from one element to the next.
float chain(DType dtype, int64_t n, const float* a, int64_t step_a, const float* b, int64_t step_b);
/// Unrounded chains of a (M,K) * b (K,N).
Matrix multiply(DType dtype, const Matrix& a, const Matrix& b);
/// Blocks of 64, 16 lanes (numerics.md section 5). Row i of a with row j of b.
float dot(const Matrix& a, int64_t i, const Matrix& b, int64_t j);

using MaybeRow = std::optional<std::vector<float>>;
/// a + b element by element; an absent side leaves the other.
MaybeRow add(const MaybeRow& a, const MaybeRow& b);
/// S(low, high) over leaves by expert.
MaybeRow tree(int64_t low, int64_t high, const std::function<MaybeRow(int64_t expert)>& leaf);

/// True where a weight makes its entry absent.
bool absent(float weight);

}  // namespace plait::test
