#include "observe/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "base/cpu.h"
#include "base/status_macros.h"
#include "observe/bench_gmm.h"
#include "observe/inputs_file.h"
#include "observe/measure_gather.h"
#include "observe/run_phases.h"

namespace plait {
namespace {

/// The case with everything decided: threads, dispatchers.
Result<Case> resolve(const RunOptions& options, int group_size) {
  Case run_case = options.run_case;
  PLAIT_RETURN_IF_ERROR(run_case.validate());
  if (options.steps < 0) return Status::invalid_argument(fmt::format("steps = {}: must be at least 0", options.steps));
  if (options.rounds < 1) return Status::invalid_argument(fmt::format("rounds = {}: must be at least 1", options.rounds));
  if (options.steps > 0 && is_array_path(run_case.input)) {
    return Status::invalid_argument(
        fmt::format("steps = {}: training needs a text as input, \"{}\" has hidden states", options.steps, run_case.input));
  }
  if (run_case.ranks != group_size) {
    return Status::invalid_argument(fmt::format("ranks = {}, but the group has {}: they must be equal", run_case.ranks, group_size));
  }
  PLAIT_ASSIGN_OR_RETURN(run_case.threads, threads_per_rank(run_case));
  if (run_case.dispatchers.empty()) run_case.dispatchers = {run_case.layer.dispatcher};
  return run_case;
}

/// Rank 0 probes, alone, as many threads as the ranks use together and the machine has; all ranks learn the result. Collective.
Result<MachineReport> describe_machine(const Case& run_case, const Context& context, Group& group) {
  struct Figures {
    double peak_gflops = 0, read_gbps = 0;
  } figures;
  Status status;
  if (group.rank() == 0) {
    int threads = static_cast<int>(std::min<int64_t>(usable_cpus(), static_cast<int64_t>(run_case.ranks) * run_case.threads));
    PLAIT_ASSIGN_OR_RETURN(std::unique_ptr<Context> whole, Context::create({.threads = threads, .kernel = std::string(name(context.tier()))}));
    PLAIT_ASSIGN_OR_RETURN(Probe probe, probe_machine(*whole));
    figures = {run_case.layer.dtype == DType::bf16 ? probe.bf16_gflops : probe.f32_gflops, probe.read_gbps};
  }
  PLAIT_ASSIGN_OR_RETURN(std::vector<Figures> all, gather_one(group, "probe", figures));
  return MachineReport{cpu_features().model, std::string(name(context.tier())), usable_cpus(), all[0].peak_gflops, all[0].read_gbps};
}

/// Layer figures of one rank; its memory is given back before the training starts.
Status measure_layer(RunCall& call) {
  PLAIT_ASSIGN_OR_RETURN(CaseInputs inputs, make_inputs(call.context, call.run_case, rank_tokens(call.run_case, call.group.rank())));
  PLAIT_ASSIGN_OR_RETURN(LayerRun run, LayerRun::create(call.context, call.group, call.run_case, std::move(inputs)));
  PLAIT_RETURN_IF_ERROR(check_dispatchers(call, run));
  if (call.report.interrupted) return {};
  return measure_dispatchers(call, run);
}

/// Waits are counted as long as this lives.
class WaitRecording {
 public:
  WaitRecording(Group& group, Recorder& recorder) : group_(group) { group.record_to(&recorder); }
  ~WaitRecording() { group_.record_to(nullptr); }
  WaitRecording(const WaitRecording&) = delete;
  WaitRecording& operator=(const WaitRecording&) = delete;

 private:
  Group& group_;
};

Result<RunReport> run_phases(const RunOptions& options, Group& group) {
  PLAIT_ASSIGN_OR_RETURN(Case run_case, resolve(options, group.size()));
  PLAIT_ASSIGN_OR_RETURN(std::unique_ptr<Context> context, Context::create({.threads = run_case.threads, .kernel = ""}));
  const WaitRecording recording(group, context->recorder());
  auto num_dispatchers = static_cast<int64_t>(run_case.dispatchers.size());
  int64_t num_units = num_dispatchers * (2 + 2 * options.rounds + options.steps);
  RunCall call{options, run_case, *context, group, Progress(options.progress, group.rank(), num_units), {}};
  call.report.run_case = run_case;
  for (Dispatcher dispatcher : run_case.dispatchers) {
    LayerConfig config = run_case.layer;
    config.dispatcher = dispatcher;
    DispatcherReport& report = call.report.dispatchers.emplace_back();
    report.dispatcher = dispatcher;
    report.in_contract = config.in_contract();
  }
  PLAIT_ASSIGN_OR_RETURN(call.report.machine, describe_machine(run_case, *context, group));
  PLAIT_RETURN_IF_ERROR(measure_layer(call));
  if (options.steps > 0 && !call.report.interrupted) PLAIT_RETURN_IF_ERROR(train_dispatchers(call));
  return std::move(call.report);
}

bool all_finite_and_equal(const std::vector<DispatcherReport>& dispatchers, std::vector<double> DispatcherReport::*series) {
  const std::vector<double>& first = dispatchers.front().*series;
  for (const DispatcherReport& dispatcher : dispatchers) {
    const std::vector<double>& values = dispatcher.*series;
    bool finite = std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
    if (!finite || (dispatcher.in_contract && dispatchers.front().in_contract && values != first)) return false;
  }
  return true;
}

}  // namespace

Result<bool> RunCall::interrupted() {
  PLAIT_ASSIGN_OR_RETURN(bool any, any_rank(group, "interruption", options.interrupted && options.interrupted()));
  report.interrupted = report.interrupted || any;
  return any;
}

Result<RunReport> run_case(const RunOptions& options, Group& group) {
  Result<RunReport> report = run_phases(options, group);
  if (!report.ok()) group.abort(report.status());
  return report;
}

bool all_checks_hold(const RunReport& report) {
  bool equal =
      std::all_of(report.comparisons.begin(), report.comparisons.end(), [](const Comparison& c) { return c.bitwise_equal || !c.in_contract; });
  bool finite = std::all_of(report.dispatchers.begin(), report.dispatchers.end(), [](const DispatcherReport& d) { return d.nonfinite == 0; });
  if (report.dispatchers.empty()) return equal;
  return equal && finite && all_finite_and_equal(report.dispatchers, &DispatcherReport::loss) &&
         all_finite_and_equal(report.dispatchers, &DispatcherReport::grad_norm);
}

}  // namespace plait
