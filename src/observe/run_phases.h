#pragma once
/// The phases of run_case: first check, measured rounds, training.

#include <string_view>
#include <vector>

#include "observe/measure.h"
#include "observe/run.h"

namespace plait {

/// Share of the work done, for the caller's progress bar; silent on ranks other than 0.
class Progress {
 public:
  Progress(const std::function<void(double, std::string_view)>& callback, int rank, int64_t num_units)
      : callback_(rank == 0 ? &callback : nullptr), num_units_(num_units) {}
  /// One unit of work, `what`, begins.
  void next(std::string_view what) {
    if (callback_ && *callback_) (*callback_)(static_cast<double>(num_begun_) / static_cast<double>(num_units_), what);
    ++num_begun_;
  }

 private:
  const std::function<void(double, std::string_view)>* callback_;
  int64_t num_units_, num_begun_ = 0;
};

/// What the phases share on one rank.
struct RunCall {
  const RunOptions& options;
  const Case& run_case;
  const Context& context;
  Group& group;
  Progress progress;
  RunReport report;

  /// True, on all ranks, where the user asked one of them to stop. Collective.
  Result<bool> interrupted();
};

/// Runs every dispatcher once as the case says and, where the router decided, once more with its routing given, which yields dweights;
/// compares with the first. Serves as warm-up. Fills report.comparisons and report.routing.
Status check_dispatchers(RunCall& call, LayerRun& run);

/// Measures all dispatchers in turn. Fills report.dispatchers.
Status measure_dispatchers(RunCall& call, LayerRun& run);

/// Median, minimum and maximum. An empty list gives zeros.
Timing timing(std::vector<double> values);
/// The figures of one dispatcher from all ranks' samples, rank after rank, `num_rounds` each.
void collect_figures(const std::vector<StepSample>& samples, int64_t num_rounds, const std::vector<double>& exchange_ms, DispatcherReport& report);

/// Trains a model per dispatcher, interleaved step by step. Fills loss, grad_norm, nonfinite and report.routing.
Status train_dispatchers(RunCall& call);

}  // namespace plait
