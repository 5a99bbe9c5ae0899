#pragma once
/// One case of the grouped matmul benchmark: its operands, its three operators, and their check against the reference kernels.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "observe/bench_gmm.h"
#include "plait/context.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait {

class BenchGmmCase {
 public:
  static constexpr std::array<std::string_view, 3> ops{"forward", "dx", "dw"};

  /// Allocates and fills all operands with numbers of magnitude up to 1, none of them 0. Error: resource_exhausted.
  static Result<BenchGmmCase> create(const Context& context, const GmmCase& shape);

  Status run(const Context& context, size_t op) const;
  /// Compares the results of run() bit by bit with `reference` (a context of the reference tier): all elements of small cases, otherwise
  /// rows and columns at the edges of the first, a middle and the last group. Error: internal, naming operator, element and values.
  Status check(const Context& reference, size_t op) const;

  /// What run() wrote: y, dx or dw.
  TensorView result(size_t op) const { return op == 0 ? y_.view : op == 1 ? dx_.view : dw_.view; }
  double flops() const { return 2.0 * static_cast<double>(total_rows_ * shape_.hidden * num_columns_); }
  /// What must move between memory and caches at least once: operands of groups with rows read, the result written.
  double bytes(size_t op) const;

 private:
  Status check_product(const Context& reference, size_t op, const ConstTensorView& x, const ConstTensorView& weight, const ConstTensorView& y) const;
  Status check_dw(const Context& reference) const;
  std::vector<size_t> sampled_groups() const;

  GmmCase shape_{};
  int64_t num_columns_ = 0;  ///< 2I
  int64_t total_rows_ = 0;
  std::vector<int64_t> counts_, begins_;
  Tensor x_, weight_, y_, dy_, dx_, dw_;
  ConstTensorView weight_view_;  ///< (E,H,2I), whatever the storage
};

/// "H 2048 I 512, 32 experts x 8 rows, bf16"
std::string describe(const GmmCase& shape);

}  // namespace plait
