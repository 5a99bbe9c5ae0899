#pragma once
/// What the fused pair refuses before it talks to other ranks. Each check names the values and the rule.

#include <string_view>

#include "ops/alltoallv_gmm.h"

namespace plait::a2av {

/// A list of counts and what the caller calls it.
struct NamedCounts {
  std::string_view name;
  std::span<const int64_t> counts;
};
/// The product of a call: x, weight, bias, the counts of rows that leave this rank, which add up to the rows of x, and of those that come.
Status check_product(const Call& call, std::string_view operation, const NamedCounts& leaving, const NamedCounts& coming);
/// Both operands of the shared product or none, of one type, and that they fit.
Status check_shared(std::string_view operation, const ConstTensorView& x, const ConstTensorView& weight);
/// Backward's further operands and its results, in the shapes in which the caller gives them. `rows` (num_rows, K).
Status check_gradients(std::string_view operation, const AllToAllVGmmUpstream& upstream, const ConstTensorView& rows, int64_t num_rows,
                       const ConstTensorView& weight, const AllToAllVGmmGradients& gradients, const AllToAllVGmmOptions& options);

}  // namespace plait::a2av
