#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/status_macros.h"
#include "observe/routing_report.h"
#include "observe/run_phases.h"

namespace plait {
namespace {

/// The place in a Comparison of a result's largest difference; null for gradients that have no column of their own.
double* difference_of(Comparison& comparison, std::string_view result) {
  if (result == "y") return &comparison.diff_y;
  if (result == "dx") return &comparison.diff_dx;
  if (result == "dw_gate_up") return &comparison.diff_dw_gate_up;
  if (result == "dw_down") return &comparison.diff_dw_down;
  if (result == "dweights") return &comparison.diff_dweights;
  return nullptr;
}

void add_differences(const std::vector<ResultDifference>& differences, std::string_view routing, Comparison& comparison) {
  for (const ResultDifference& result : differences) {
    if (result.difference.equal) continue;
    comparison.bitwise_equal = false;
    if (double* largest = difference_of(comparison, result.name)) *largest = std::max(*largest, result.difference.max_abs);
    if (!comparison.first_difference.empty()) continue;
    comparison.first_difference = fmt::format("{}{} differs on rank {} from element {} on, by up to {:.3g} (element {})", result.name, routing,
                                              result.rank, result.difference.first, result.difference.max_abs, result.difference.largest);
  }
}

/// A pass of all dispatchers over the same inputs and routing; item i > 0 is compared with item 0.
Status check_pass(RunCall& call, LayerRun& run, std::string_view routing) {
  ResultCopies baseline;
  for (size_t i = 0; i < call.run_case.dispatchers.size(); ++i) {
    Dispatcher dispatcher = call.run_case.dispatchers[i];
    call.progress.next(fmt::format("checking {}", name(dispatcher)));
    if (call.options.before_check) call.options.before_check(dispatcher, run.parameters());
    PLAIT_RETURN_IF_ERROR(run.forward(dispatcher));
    if (call.run_case.backward) PLAIT_RETURN_IF_ERROR(run.backward());
    std::vector<NamedResult> results = run.results(call.run_case.backward);
    if (i == 0) {
      baseline = ResultCopies(results);
      continue;
    }
    PLAIT_ASSIGN_OR_RETURN(std::vector<ResultDifference> differences, compare_results(call.group, results, baseline));
    add_differences(differences, routing, call.report.comparisons[i - 1]);
  }
  return {};
}

}  // namespace

Status check_dispatchers(RunCall& call, LayerRun& run) {
  const std::vector<Dispatcher>& dispatchers = call.run_case.dispatchers;
  for (size_t i = 1; i < dispatchers.size(); ++i) {
    Comparison& comparison = call.report.comparisons.emplace_back();
    comparison.a = dispatchers[0];
    comparison.b = dispatchers[i];
    comparison.bitwise_equal = true;
    comparison.in_contract = call.report.dispatchers[0].in_contract && call.report.dispatchers[i].in_contract;
  }
  PLAIT_RETURN_IF_ERROR(check_pass(call, run, ""));
  call.report.routing = {routing_report(tokens_per_expert(run.state().plan.counts()))};
  PLAIT_ASSIGN_OR_RETURN(bool stop, call.interrupted());
  if (stop || run.inputs().ids.defined() || !call.run_case.backward) return {};
  // The router's choice as given routing: the same rows, and the gradients of the weights themselves.
  GivenRouting routing{run.state().ids, run.state().weights};
  Tensor ids = run.state().ids, weights = run.state().weights;  // held until the pass is over
  run.set_routing(routing);
  Status status = check_pass(call, run, " with given routing");
  run.set_routing(run.inputs().given());
  return status;
}

}  // namespace plait
