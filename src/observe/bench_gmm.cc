#include "observe/bench_gmm.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/cpu.h"
#include "base/status_macros.h"
#include "observe/bench_gmm_case.h"
#include "observe/probe.h"
#include "observe/run_phases.h"
#include "plait/counters.h"

namespace plait {
namespace {

constexpr int64_t least_rounds = 3, most_rounds = 300;
constexpr int64_t read_probe_every_ns = 100'000'000;  // a pass over memory takes about 10 ms

Status check_case(const GmmCase& c) {
  bool sizes = c.hidden >= 1 && c.intermediate >= 1 && c.rows_per_expert >= 0 && c.num_experts >= 1;
  if (!sizes) return Status::invalid_argument(fmt::format("bench gmm: {}: sizes must be at least 1, rows at least 0", describe(c)));
  if (!is_floating(c.dtype)) return Status::invalid_argument(fmt::format("bench gmm: type {}: allowed are f32, bf16, f16", name(c.dtype)));
  return {};
}

/// The three operators in turn, round after round, with the probe between the rounds. Times in ms, per operator.
class CaseTimer {
 public:
  CaseTimer(const Context& context, const BenchGmmOptions& options, MachineProbe& probe) : context_(context), options_(options), probe_(probe) {}

  /// Stops early where the user interrupts.
  Status run(const BenchGmmCase& operands, DType dtype) {
    int64_t begin = now_ns();
    int64_t last_read_probe = 0;
    for (int64_t round = 0; round < most_rounds && !interrupted(); ++round) {
      int64_t now = now_ns();
      if (round >= least_rounds && static_cast<double>(now - begin) > options_.seconds_per_case * 1e9) break;
      probe_.burst_flops(dtype);
      if (now - last_read_probe > read_probe_every_ns) {
        probe_.burst_read();
        last_read_probe = now;
      }
      for (size_t op = 0; op < times.size(); ++op) {
        int64_t start = now_ns();
        PLAIT_RETURN_IF_ERROR(operands.run(context_, op));
        times[op].push_back(static_cast<double>(now_ns() - start) * 1e-6);
      }
    }
    return {};
  }
  bool interrupted() const { return options_.interrupted && options_.interrupted(); }

  std::array<std::vector<double>, BenchGmmCase::ops.size()> times;

 private:
  const Context& context_;
  const BenchGmmOptions& options_;
  MachineProbe& probe_;
};

/// Shares are filled in at the end of the run, from its best probes.
GmmTiming timing_of(const GmmCase& shape, const BenchGmmCase& operands, size_t op, const std::vector<double>& times) {
  GmmTiming t{.shape = shape, .op = std::string(BenchGmmCase::ops[op])};
  const Timing ms = timing(times);
  t.rounds = ms.n;
  t.best_ms = ms.min;
  t.median_ms = ms.median;
  t.gflops = operands.flops() / (t.best_ms * 1e6);
  t.gbps = operands.bytes(op) / (t.best_ms * 1e6);
  return t;
}

void fill_shares(BenchGmmReport& report) {
  for (GmmTiming& t : report.timings) {
    double peak = t.shape.dtype == DType::bf16 ? report.probe.bf16_gflops : report.probe.f32_gflops;
    t.share_of_peak = t.gflops / peak;
    t.share_of_bandwidth = t.gbps / report.probe.read_gbps;
    t.share_of_bound = std::max(t.share_of_peak, t.share_of_bandwidth);
  }
}

Status bench_case(const Context& context, const Context& reference, const GmmCase& shape, const BenchGmmOptions& options, MachineProbe& probe,
                  BenchGmmReport& report) {
  PLAIT_ASSIGN_OR_RETURN(BenchGmmCase operands, BenchGmmCase::create(context, shape));
  for (size_t op = 0; op < BenchGmmCase::ops.size(); ++op) {
    PLAIT_RETURN_IF_ERROR(operands.run(context, op));
    PLAIT_RETURN_IF_ERROR(operands.check(reference, op));
  }
  CaseTimer timer(context, options, probe);
  PLAIT_RETURN_IF_ERROR(timer.run(operands, shape.dtype));
  for (size_t op = 0; op < timer.times.size(); ++op) {
    if (!timer.times[op].empty()) report.timings.push_back(timing_of(shape, operands, op, timer.times[op]));
  }
  report.interrupted = timer.interrupted();
  return {};
}

}  // namespace

Result<BenchGmmReport> bench_gmm(const Context& context, const BenchGmmOptions& options) {
  const std::vector<GmmCase> cases = options.cases.empty() ? default_gmm_cases() : options.cases;
  for (const GmmCase& c : cases) PLAIT_RETURN_IF_ERROR(check_case(c));
  PLAIT_ASSIGN_OR_RETURN(std::unique_ptr<Context> reference, Context::create({.threads = 1, .kernel = std::string(name(Tier::reference))}));
  PLAIT_ASSIGN_OR_RETURN(MachineProbe probe, MachineProbe::create(context));
  BenchGmmReport report{.cpu = cpu_features().model, .tier = std::string(name(context.tier())), .threads = context.threads()};
  for (size_t i = 0; i < cases.size() && !report.interrupted; ++i) {
    if (options.progress) options.progress(static_cast<double>(i) / static_cast<double>(cases.size()), describe(cases[i]));
    PLAIT_RETURN_IF_ERROR(bench_case(context, *reference, cases[i], options, probe, report));
  }
  if (options.progress && !report.interrupted) options.progress(1, "");
  report.probe = probe.best();
  fill_shares(report);
  return report;
}

}  // namespace plait
