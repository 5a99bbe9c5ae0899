#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "base/status_macros.h"
#include "observe/measure_gather.h"
#include "observe/run_phases.h"

namespace plait {
namespace {

constexpr double ms_per_s = 1e3, flops_per_gflop = 1e9;

/// max over ranks of each round; `figure(sample)` chooses what.
template <typename Figure>
std::vector<double> maxima(const std::vector<StepSample>& samples, int64_t num_rounds, Figure figure) {
  std::vector<double> values(static_cast<size_t>(num_rounds), 0.0);
  for (size_t i = 0; i < samples.size(); ++i) {
    double& value = values[i % values.size()];
    value = std::max(value, figure(samples[i]));
  }
  return values;
}

/// What depends on the case: shares of the peak and of time. All from medians.
void add_rates(const RunCall& call, int64_t num_global_rows, DispatcherReport& report) {
  double step_s = report.step.median / ms_per_s;
  if (step_s <= 0) return;
  report.tokens_per_s = static_cast<double>(call.run_case.tokens) / step_s;
  report.eta = std::max(report.compute_only.median, report.comm_only.median) / report.step.median;
  report.exposed_share = report.exposed_comm.median / report.step.median;
  double peak = call.report.machine.peak_gflops * flops_per_gflop;
  if (peak > 0) report.utilisation = step_flops(call.run_case, num_global_rows) / step_s / peak;
}

/// A step of each dispatcher in turn, then their computation alone, then the exchange alone, whose ms is the result.
Result<double> measure_round(RunCall& call, LayerRun& run, std::string_view round, std::vector<std::vector<StepSample>>& samples) {
  const std::vector<Dispatcher>& dispatchers = call.run_case.dispatchers;
  for (size_t i = 0; i < dispatchers.size(); ++i) {
    call.progress.next(fmt::format("{}: {}", round, name(dispatchers[i])));
    PLAIT_ASSIGN_OR_RETURN(StepSample sample, measure_step(run, dispatchers[i], call.run_case.backward));
    samples[i].push_back(sample);
  }
  RoutingPlan plan = run.state().plan;
  run.drop_state();
  for (size_t i = 0; i < dispatchers.size(); ++i) {
    call.progress.next(fmt::format("{}: {}, computation alone", round, name(dispatchers[i])));
    PLAIT_ASSIGN_OR_RETURN(samples[i].back().compute, measure_compute(run, samples[i].back().ran, call.run_case.backward));
  }
  return measure_exchange(run, plan, call.run_case.backward);
}

/// One rank's rounds.
void collect_rank(std::span<const StepSample> samples, DispatcherReport& report) {
  std::vector<double> step, waited;
  StepSample most;
  for (const StepSample& sample : samples) {
    step.push_back(sample.step);
    waited.push_back(sample.waited);
    most.bytes_sent = std::max(most.bytes_sent, sample.bytes_sent);
    most.peak_bytes = std::max(most.peak_bytes, sample.peak_bytes);
    most.tiles = std::max(most.tiles, sample.tiles);
    most.chains_late = std::max(most.chains_late, sample.chains_late);
    most.early_tiles = std::max(most.early_tiles, sample.early_tiles);
    if (sample.waited > most.waited) {
      most.waited = sample.waited;
      most.waited_for = sample.waited_for;
    }
  }
  report.resident_bytes = std::max(report.resident_bytes, samples.front().resident_bytes);  // later ones have memory of the records
  report.step_per_rank.push_back(timing(std::move(step)));
  report.waited_per_rank.push_back(timing(std::move(waited)));
  report.waited_for_per_rank.push_back(most.waited_for);
  report.bytes_sent_per_rank.push_back(most.bytes_sent);
  report.peak_bytes_per_rank.push_back(most.peak_bytes);
  report.tiles_per_rank.push_back(most.tiles);
  report.chains_late_per_rank.push_back(most.chains_late);
  report.early_tiles_per_rank.push_back(most.early_tiles);
  report.bytes_sent = std::max(report.bytes_sent, most.bytes_sent);
  report.peak_bytes = std::max(report.peak_bytes, most.peak_bytes);
}

}  // namespace

Timing timing(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  size_t n = values.size();
  return {(values[(n - 1) / 2] + values[n / 2]) / 2, values.front(), values.back(), static_cast<int64_t>(n)};
}

void collect_figures(const std::vector<StepSample>& samples, int64_t num_rounds, const std::vector<double>& exchange_ms, DispatcherReport& report) {
  auto over_ranks = [&](double StepSample::*figure) { return maxima(samples, num_rounds, [&](const StepSample& s) { return s.*figure; }); };
  std::vector<double> step = over_ranks(&StepSample::step), compute = over_ranks(&StepSample::compute), exposed;
  for (size_t i = 0; i < step.size(); ++i) exposed.push_back(std::max(0.0, step[i] - compute[i]));  // two runs: noise may swap them
  report.step = timing(step);
  report.forward = timing(over_ranks(&StepSample::forward));
  report.backward = timing(over_ranks(&StepSample::backward));
  report.comm = timing(over_ranks(&StepSample::comm));
  report.dispatch = timing(over_ranks(&StepSample::dispatch));
  report.combine = timing(over_ranks(&StepSample::combine));
  report.gmm = timing(over_ranks(&StepSample::gmm));
  report.permute = timing(over_ranks(&StepSample::permute));
  report.host = timing(over_ranks(&StepSample::host));
  report.compute_only = timing(compute);
  report.exposed_comm = timing(exposed);
  report.comm_only = timing(exchange_ms);
  for (size_t begin = 0; begin < samples.size(); begin += static_cast<size_t>(num_rounds)) {
    collect_rank(std::span(samples).subspan(begin, static_cast<size_t>(num_rounds)), report);
  }
}

Status measure_dispatchers(RunCall& call, LayerRun& run) {
  const std::vector<Dispatcher>& dispatchers = call.run_case.dispatchers;
  std::vector<std::vector<StepSample>> samples(dispatchers.size());
  std::vector<double> exchange_ms;
  for (int64_t round = 0; round < call.options.rounds; ++round) {
    PLAIT_ASSIGN_OR_RETURN(bool stop, call.interrupted());
    if (stop) break;
    PLAIT_ASSIGN_OR_RETURN(double ms, measure_round(call, run, fmt::format("round {} of {}", round + 1, call.options.rounds), samples));
    exchange_ms.push_back(ms);
  }
  auto num_rounds = static_cast<int64_t>(exchange_ms.size());
  if (num_rounds == 0) return {};
  PLAIT_ASSIGN_OR_RETURN(std::vector<double> all_exchanges, gather<double>(call.group, "measurement", exchange_ms));
  for (size_t i = 0; i < all_exchanges.size(); ++i) {
    double& slowest = exchange_ms[i % exchange_ms.size()];
    slowest = std::max(slowest, all_exchanges[i]);
  }
  const std::vector<int64_t>& tokens = call.report.routing.front().tokens_per_expert;
  int64_t num_global_rows = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  for (size_t i = 0; i < dispatchers.size(); ++i) {
    PLAIT_ASSIGN_OR_RETURN(std::vector<StepSample> all, gather<StepSample>(call.group, "measurement", samples[i]));
    DispatcherReport& report = call.report.dispatchers[i];
    collect_figures(all, num_rounds, exchange_ms, report);
    const StepSample& last = samples[i].back();
    if (last.ran != dispatchers[i]) report.fallback = fmt::format("{}: {}", name(last.ran), last.reason.data());
    add_rates(call, num_global_rows, report);
    if (i == 0 || report.step.median <= 0) continue;
    call.report.comparisons[i - 1].speedup = call.report.dispatchers[0].step.median / report.step.median;
  }
  return {};
}

}  // namespace plait
