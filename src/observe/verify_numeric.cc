#include <algorithm>
#include <cmath>
#include <map>

#include "base/status_macros.h"
#include "observe/verify_call.h"
#include "plait/routing.h"

namespace plait::verify {
namespace {

constexpr size_t max_experts_shown = 3;

/// Which experts a row of a result belongs to: those of the token, or the expert that the rows of a weight's gradient are of.
std::vector<int64_t> experts_of_row(const LayerRun& run, std::string_view result, const ConstTensorView& view, int64_t row) {
  if (view.num_dims == 3 || result == "db_gate_up" || result == "db_down") {
    int64_t rows_per_expert = view.num_dims == 3 ? view.shape[1] : 1;
    ExpertPlacement placement{run.config().router.num_experts, run.group().size()};
    return {placement.global(run.group().rank(), row / rows_per_expert)};
  }
  std::vector<int64_t> experts;
  if (result != "y" && result != "dx" && result != "dweights") return experts;
  const Tensor& ids = run.state().ids;
  for (int64_t slot = 0; slot < ids.view.shape[1]; ++slot) experts.push_back(ids.as<int32_t>()[row * ids.view.shape[1] + slot]);
  return experts;
}

struct WorstRow {
  double distance = -1;
  int64_t row = 0;
};

double distance_of(const ConstTensorView& a, const ConstTensorView& b, int64_t flat) {
  double distance = std::fabs(element(a, flat) - element(b, flat));
  return std::isnan(distance) ? HUGE_VAL : distance;
}

std::string describe_difference(const LayerRun& run, int64_t first_token, const NamedResult& result, const NamedResult& baseline,
                                const Difference& difference) {
  const ConstTensorView &a = result.view, &b = baseline.view;
  int64_t columns = a.shape[a.num_dims - 1], row = difference.largest / columns;
  bool of_token = result.name == "y" || result.name == "dx" || result.name == "dweights";
  std::string text = fmt::format("{} {}, column {}: {:.9g} against {:.9g}", of_token ? "token" : "row", of_token ? first_token + row : row,
                                 difference.largest % columns, element(a, difference.largest), element(b, difference.largest));
  std::map<int64_t, WorstRow> worst;
  for (int64_t i = 0; i < a.num_elements(); ++i) {
    if (compare_bits({a.data + i * size_of(a.dtype), a.dtype, {1}}, {b.data + i * size_of(b.dtype), b.dtype, {1}}).equal) continue;
    double distance = distance_of(a, b, i);
    for (int64_t expert : experts_of_row(run, result.name, a, i / columns)) {
      if (distance > worst[expert].distance) worst[expert] = {distance, i / columns};
    }
  }
  std::vector<std::pair<int64_t, WorstRow>> order(worst.begin(), worst.end());
  std::stable_sort(order.begin(), order.end(), [](const auto& l, const auto& r) { return l.second.distance > r.second.distance; });
  order.resize(std::min(order.size(), max_experts_shown));
  for (const auto& [expert, at] : order) text += fmt::format("; expert {}: worst row {}, by {:.3g}", expert, at.row, at.distance);
  return text;
}

/// All dispatchers on the run's routing, compared with the first.
Status compare_dispatchers(VerifyCall& call, LayerRun& run, std::string_view routing) {
  ResultCopies baseline;
  int64_t first_token = rank_tokens(call.run_case, call.group.rank()).first;
  for (size_t d = 0; d < call.dispatchers.size(); ++d) {
    PLAIT_RETURN_IF_ERROR(call.step(run, call.dispatchers[d]));
    std::vector<NamedResult> results = run.results(true);
    if (d == 0) baseline = ResultCopies(results);
    for (size_t i = 0; i < results.size() && d > 0; ++i) {
      std::string line = fmt::format("{} = {}: {}{}", name(call.dispatchers[d]), name(call.dispatchers[0]), results[i].name, routing);
      PLAIT_RETURN_IF_ERROR(add_comparison(call, "numeric", std::move(line), run, first_token, results[i], baseline.items()[i]));
    }
  }
  return {};
}

}  // namespace

Status add_comparison(VerifyCall& call, std::string_view section, std::string name, const LayerRun& run, int64_t first_token,
                      const NamedResult& result, const NamedResult& baseline) {
  Difference difference = compare_bits(result.view, baseline.view);
  std::string detail = "same bits";
  if (!difference.equal) detail = describe_difference(run, first_token, result, baseline, difference);
  return call.add(section, std::move(name), difference.equal, std::move(detail));
}

Status verify_numeric(VerifyCall& call) {
  PLAIT_ASSIGN_OR_RETURN(CaseInputs inputs, make_inputs(call.context, call.run_case, rank_tokens(call.run_case, call.group.rank())));
  PLAIT_ASSIGN_OR_RETURN(LayerRun run, LayerRun::create(call.context, call.group, call.run_case, std::move(inputs)));
  PLAIT_RETURN_IF_ERROR(compare_dispatchers(call, run, ""));
  if (run.inputs().ids.defined()) return {};
  Tensor ids = run.state().ids, weights = run.state().weights;
  run.set_routing({ids, weights});
  return compare_dispatchers(call, run, ", given routing");
}

}  // namespace plait::verify
