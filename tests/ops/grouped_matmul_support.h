#pragma once
/// Helpers of the grouped matmul tests: float64 oracles, layouts, poisoned memory.

#include <memory>
#include <string>
#include <vector>

#include "plait/grouped_matmul.h"
#include "support/test_tensors.h"

namespace plait::test {

std::unique_ptr<Context> gmm_context(int threads = 1, const std::string& kernel = "");

/// Fills arena and heap blocks of about `bytes` with NaN and gives them back, so that a result nobody wrote shows.
void poison(const Context& context, int64_t bytes);

/// The same numbers in another layout: a NaN-padded row stride, transposed storage, gaps between elements, or descending rows.
enum class Layout { dense, padded_rows, transposed, spread, reversed };
constexpr Layout all_layouts[] = {Layout::dense, Layout::padded_rows, Layout::transposed, Layout::spread, Layout::reversed};
Tensor in_layout(const Tensor& dense, Layout layout);
/// A tensor of NaN in that layout, for results.
Tensor blank_in_layout(DType dtype, std::initializer_list<int64_t> shape, Layout layout);

/// One element of a product in float64 with the sum of magnitudes that numerics.md section 9 bounds its error by.
struct OracleElement {
  double value = 0;
  double magnitude = 0;  ///< sum of |a||b| (+ |bias|)
  double inputs = 0;     ///< sum of |a| + |b|
  int64_t terms = 0;
};
/// y[m][n] of the M-grouped product; rows beyond the counts give 0.
OracleElement oracle_forward(const ConstTensorView& x, const ConstTensorView& weight, const std::vector<int64_t>& counts, const ConstTensorView& bias,
                             int64_t m, int64_t n);
/// dw[g][k][n].
OracleElement oracle_dw(const ConstTensorView& x, const ConstTensorView& dy, const std::vector<int64_t>& counts, int64_t g, int64_t k, int64_t n);
/// The error that the contract allows for a result of `type`.
double allowed_error(const OracleElement& element, DType type);

Status gmm(const Context& context, const Tensor& x, const Tensor& weight, const std::vector<int64_t>& list, const Tensor& y,
           const GroupedMatmulOptions& options = {}, const Tensor& bias = {});

}  // namespace plait::test
