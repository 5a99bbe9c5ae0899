#pragma once
/// Comparison of results to the bit. docs/numerics.md: any NaN equals any NaN.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plait/group.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait {

/// A result of a layer call by name: "y", "dx", "dw_gate_up", "dw_down", "dweights", "db_down", "dw_router", ....
struct NamedResult {
  std::string_view name;
  ConstTensorView view;  ///< contiguous
};

/// Copies outside the arena, so that they change neither its use nor its high-water mark.
class ResultCopies {
 public:
  ResultCopies() = default;
  explicit ResultCopies(std::span<const NamedResult> results);
  std::span<const NamedResult> items() const { return items_; }

 private:
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<NamedResult> items_;
};

struct Difference {
  bool equal = true;
  double max_abs = 0;    ///< infinity where one side is NaN or the shapes differ
  int64_t first = -1;    ///< flat index of the first element that differs
  int64_t largest = -1;  ///< flat index of the largest difference
};

/// Element as double; `view` contiguous and of a floating type.
double element(const ConstTensorView& view, int64_t flat);
Difference compare_bits(const ConstTensorView& a, const ConstTensorView& b);

/// One result over all ranks.
struct ResultDifference {
  std::string name;
  Difference difference;  ///< equal: on all ranks; max_abs: the largest; indices: those of `rank`
  int rank = -1;          ///< the rank with the largest difference, -1 where all are equal
};
/// Compares this rank's results with the copies and collects over the ranks. Both lists have the same names. Collective.
Result<std::vector<ResultDifference>> compare_results(Group& group, std::span<const NamedResult> results, const ResultCopies& copies);

}  // namespace plait
