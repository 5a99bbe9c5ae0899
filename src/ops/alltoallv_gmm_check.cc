#include "ops/alltoallv_gmm_check.h"

#include <fmt/format.h>

#include <iterator>
#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "ops/dense_rows.h"
#include "ops/grouped_matmul_check.h"
#include "ops/grouped_matmul_layout.h"

namespace plait::a2av {
namespace {

Status fail(std::string_view operation, const std::string& text) { return Status::invalid_argument(fmt::format("{}: {}", operation, text)); }

Status check_counts(std::string_view operation, const NamedCounts& list, int num_ranks, int64_t experts) {
  const auto& [what, counts] = list;
  if (static_cast<int64_t>(counts.size()) != num_ranks * experts) {
    return fail(operation, fmt::format("{} has {} items; {} ranks with {} experts each need {}, rank major", what, counts.size(), num_ranks, experts,
                                       num_ranks * experts));
  }
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] >= 0) continue;
    return fail(operation, fmt::format("{}[{}] is {} (rank {}, its expert {}); a count must be at least 0", what, i, counts[i],
                                       static_cast<int64_t>(i) / experts, static_cast<int64_t>(i) % experts));
  }
  return {};
}

/// The product's result is memory of ours: only its shape takes part in the checks.
TensorView result_shape(const ConstTensorView& x, const ConstTensorView& weight) { return {nullptr, x.dtype, {x.shape[0], weight.shape[2]}}; }

Status check_rows(std::string_view operation, const ConstTensorView& rows, int64_t num_rows, const ConstTensorView& weight, int64_t columns) {
  PLAIT_RETURN_IF_ERROR(gmm_check::operand(operation, "rows of forward", rows, 2, 1));
  PLAIT_RETURN_IF_ERROR(gmm_check::same_type(operation, "rows of forward", rows, "weight", weight));
  if (rows.shape[0] == num_rows && rows.shape[1] == columns) return {};
  return fail(operation, fmt::format("the rows of forward are {}; the weight's gradient needs ({}, {})", describe(rows), num_rows, columns));
}

Status check_shared_gradient(std::string_view operation, const AllToAllVGmmUpstream& upstream, const AllToAllVGmmGradients& gradients,
                             const AllToAllVGmmOptions& options) {
  const ConstTensorView& weight = options.shared_weight;
  if (!upstream.dshared_y.defined()) {
    if (!gradients.shared_weight.defined()) return {};
    return fail(operation, "the gradient of shared_weight needs dshared_y");
  }
  if (!weight.defined()) return fail(operation, "dshared_y is given without shared_weight");
  PLAIT_RETURN_IF_ERROR(check_shared(operation, upstream.dshared_y, options.trans_shared_weight ? weight : weight.transposed(0, 1)));
  if (!gradients.shared_weight.defined()) return {};
  const ConstTensorView forward_weight = options.trans_shared_weight ? weight.transposed(0, 1) : weight;
  PLAIT_RETURN_IF_ERROR(check_shared(operation, options.shared_x, forward_weight));
  if (options.shared_x.shape[0] != upstream.dshared_y.shape[0]) {
    return fail(operation, fmt::format("shared_x is {} and dshared_y is {}: both need the same number of rows", describe(options.shared_x),
                                       describe(upstream.dshared_y)));
  }
  return gmm_check::result(operation, "gradient of shared_weight", gradients.shared_weight, {weight.shape[0], weight.shape[1]}, weight.dtype,
                           gradients.accumulate);
}

}  // namespace

Status check_product(const Call& call, std::string_view operation, const NamedCounts& leaving, const NamedCounts& coming) {
  PLAIT_RETURN_IF_ERROR(gmm_check::m_grouped(operation, call.x, call.weight, call.bias, result_shape(call.x, call.weight)));
  PLAIT_RETURN_IF_ERROR(check_counts(operation, leaving, call.group.size(), call.weight.shape[0]));
  PLAIT_RETURN_IF_ERROR(check_counts(operation, coming, call.group.size(), call.weight.shape[0]));
  const int64_t num_rows = std::accumulate(leaving.counts.begin(), leaving.counts.end(), int64_t{0});
  if (num_rows == call.x.shape[0]) return {};
  return fail(operation,
              fmt::format("x is {}: {} rows, but {} add up to {}; they must be equal", describe(call.x), call.x.shape[0], leaving.name, num_rows));
}

Status check_shared(std::string_view operation, const ConstTensorView& x, const ConstTensorView& weight) {
  if (!x.defined() && !weight.defined()) return {};
  if (!x.defined() || !weight.defined()) {
    return fail(operation, fmt::format("{} is given without {}; the shared product needs both", x.defined() ? "shared_x" : "shared_weight",
                                       x.defined() ? "shared_weight" : "shared_x"));
  }
  const std::string product = fmt::format("{}, shared product", operation);
  PLAIT_RETURN_IF_ERROR(gmm_check::operand(product, "weight", weight, 2, 0));
  return gmm_check::m_grouped(product, x, as_group(weight), {}, result_shape(x, as_group(weight)));
}

Status check_gradients(std::string_view operation, const AllToAllVGmmUpstream& upstream, const ConstTensorView& rows, int64_t num_rows,
                       const ConstTensorView& weight, const AllToAllVGmmGradients& gradients, const AllToAllVGmmOptions& options) {
  const int64_t columns = weight.shape[options.trans_weight ? 2 : 1], outputs = weight.shape[options.trans_weight ? 1 : 2];
  if (gradients.weight.defined()) {
    PLAIT_RETURN_IF_ERROR(check_rows(operation, rows, num_rows, weight, columns));
    PLAIT_RETURN_IF_ERROR(gmm_check::result(operation, "gradient of weight", gradients.weight, {weight.shape[0], weight.shape[1], weight.shape[2]},
                                            weight.dtype, gradients.accumulate));
  }
  if (gradients.bias.defined()) {
    PLAIT_RETURN_IF_ERROR(
        gmm_check::result(operation, "gradient of bias", gradients.bias, {weight.shape[0], outputs}, weight.dtype, gradients.accumulate));
  }
  PLAIT_RETURN_IF_ERROR(check_shared_gradient(operation, upstream, gradients, options));
  const std::pair<std::string_view, ConstTensorView> results[] = {
      {"gradient of weight", gradients.weight}, {"gradient of bias", gradients.bias}, {"gradient of shared_weight", gradients.shared_weight}};
  const std::pair<std::string_view, ConstTensorView> operands[] = {
      {"dy", upstream.dy}, {"dshared_y", upstream.dshared_y}, {"the rows of forward", rows},
      {"weight", weight},  {"shared_x", options.shared_x},    {"shared_weight", options.shared_weight}};
  for (size_t i = 0; i < std::size(results); ++i) {
    const auto& [what, result] = results[i];
    for (const auto& [operand_name, operand] : operands) {
      PLAIT_RETURN_IF_ERROR(gmm_layout::check_apart(operation, what, result, operand_name, operand));
    }
    for (size_t j = 0; j < i; ++j) PLAIT_RETURN_IF_ERROR(gmm_layout::check_apart(operation, what, result, results[j].first, results[j].second));
  }
  return {};
}

}  // namespace plait::a2av
