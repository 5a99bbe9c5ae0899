#pragma once
/// The sum over a token's experts as a tree over expert ids (docs/numerics.md section 4), and plain sums in slot order, as lists of steps
/// for ElementwiseKernels::sum_rows. The only place where the tree is built: unpermute, the layer's y and dx and partial sums use it.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/elementwise.h"
#include "plait/tensor.h"

namespace plait {

/// One present or absent term of a token's sum.
struct TreeTerm {
  int64_t expert = 0;              ///< its place in [0, E); for the sum of a tree node: any expert of the node
  const std::byte* row = nullptr;  ///< null: absent
  DType type = DType::f32;
  bool weighted = false;  ///< the term is round32(weight * row), absent where |weight| < 2^-126; otherwise the row as it is
  float weight = 1.0F;
};

/// A token's list of steps. Reuse one object per thread: it keeps its memory.
/// Example: y = round(S(0, E) + gate * shared)
///   steps.clear();
///   steps.add_tree(terms, num_experts);
///   steps.add_row({.row = shared, .type = type, .weighted = true, .weight = gate});
///   steps.sum(kernels, type, y, hidden);
class RowSum {
 public:
  void clear() { steps_.clear(); }

  /// The tree over [0, num_experts) of one token's terms, given in slot order (k of them, any order of experts). The span is sorted by
  /// expert. Call it first after clear(), at most once.
  void add_tree(std::span<TreeTerm> terms, int64_t num_experts);
  /// sum + term: added to what stands so far; the first present term starts the sum. Ascending slots: one call per slot.
  void add_row(const TreeTerm& term);

  /// out (n columns of out_type) = the sum, rounded once; +0 without terms.
  void sum(const kernels::ElementwiseKernels& elementwise, DType out_type, std::byte* out, int64_t n) const {
    elementwise.sum_rows(steps_.data(), static_cast<int64_t>(steps_.size()), out_type, out, n);
  }
  std::span<const kernels::SumStep> steps() const { return steps_; }

 private:
  std::vector<kernels::SumStep> steps_;
  std::vector<int> open_splits_;  // depths of the tree nodes whose right side is still to come
};

/// The depth below the root [0, num_experts) of the node that has a and b on different sides. 0 <= a < b < num_experts.
int split_depth(int64_t a, int64_t b, int64_t num_experts);

}  // namespace plait
