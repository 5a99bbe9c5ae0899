#include "observe/bench_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "base/cpu.h"
#include "base/status_macros.h"
#include "observe/inputs.h"
#include "observe/measure.h"
#include "observe/probe.h"
#include "observe/run_phases.h"
#include "plait/group.h"

namespace plait {
namespace {

constexpr int64_t least_rounds = 3, most_rounds = 300;

double milliseconds(int64_t ns) { return static_cast<double>(ns) * 1e-6; }

/// Times in ms of all rounds of one dispatcher.
struct Rounds {
  std::vector<double> step;
  std::array<std::vector<double>, num_stages> stage;
};

class LayerBench {
 public:
  LayerBench(const BenchLayerOptions& options, LayerRun& run, MachineProbe& probe)
      : options_(options), run_(run), probe_(probe), rounds_(options.run_case.dispatchers.size()) {}

  Status check();
  Status measure();
  int64_t rows() const { return rows_; }
  const std::vector<Rounds>& rounds() const { return rounds_; }
  bool interrupted() const { return options_.interrupted && options_.interrupted(); }

 private:
  Status measure_round();

  const BenchLayerOptions& options_;
  LayerRun& run_;
  MachineProbe& probe_;
  std::vector<Rounds> rounds_;
  int64_t rows_ = 0;
};

/// Also the warm-up.
Status LayerBench::check() {
  const Case& c = options_.run_case;
  ResultCopies baseline;
  for (const Dispatcher dispatcher : c.dispatchers) {
    PLAIT_RETURN_IF_ERROR(run_.forward(dispatcher));
    rows_ = run_.state().plan.num_recv_rows();
    if (c.backward) PLAIT_RETURN_IF_ERROR(run_.backward());
    const std::vector<NamedResult> results = run_.results(c.backward);
    if (dispatcher == c.dispatchers.front()) {
      baseline = ResultCopies(results);
      continue;
    }
    PLAIT_ASSIGN_OR_RETURN(const std::vector<ResultDifference> differences, compare_results(run_.group(), results, baseline));
    for (const ResultDifference& d : differences) {
      if (d.difference.equal) continue;
      return Status::internal(fmt::format("bench layer: {}, element {} of {} differs from {}", name(dispatcher), d.difference.first, d.name,
                                          name(c.dispatchers.front())));
    }
  }
  return {};
}

Status LayerBench::measure_round() {
  const Case& c = options_.run_case;
  const Recorder& recorder = run_.context().recorder();
  for (size_t i = 0; i < c.dispatchers.size(); ++i) {
    PLAIT_ASSIGN_OR_RETURN(const StepSample sample, measure_step(run_, c.dispatchers[i], c.backward));
    rounds_[i].step.push_back(sample.step);
    for (size_t stage = 0; stage < rounds_[i].stage.size(); ++stage) {
      rounds_[i].stage[stage].push_back(milliseconds(recorder.stage_ns(static_cast<Stage>(stage))));
    }
  }
  return {};
}

Status LayerBench::measure() {
  const int64_t begin = now_ns();
  for (int64_t round = 0; round < most_rounds && !interrupted(); ++round) {
    const double passed = static_cast<double>(now_ns() - begin) * 1e-9;
    if (round >= least_rounds && passed > options_.seconds) break;
    if (options_.progress) options_.progress(std::min(passed / options_.seconds, 1.0), fmt::format("round {}", round + 1));
    probe_.burst_flops(DType::f32);
    probe_.burst_flops(DType::bf16);
    probe_.burst_read();
    PLAIT_RETURN_IF_ERROR(measure_round());
  }
  return {};
}

LayerTiming timing_of(const LayerBench& bench, const Rounds& rounds, const BenchLayerReport& report, Dispatcher dispatcher) {
  LayerTiming layer{.dispatcher = dispatcher};
  const Timing step = timing(rounds.step);
  layer.rounds = step.n;
  if (layer.rounds == 0) return layer;
  layer.best_ms = step.min;
  layer.median_ms = step.median;
  const double peak = report.run_case.layer.dtype == DType::bf16 ? report.probe.bf16_gflops : report.probe.f32_gflops;
  for (size_t i = 0; i < rounds.stage.size(); ++i) {
    const Timing times = timing(rounds.stage[i]);
    StageTiming t{.stage = static_cast<Stage>(i), .best_ms = times.min, .median_ms = times.median};
    if (t.median_ms <= 0) continue;
    const StageWork work = stage_work(report.run_case, bench.rows(), t.stage, dispatcher);
    t.share = t.median_ms / layer.median_ms;
    t.bound_ms = std::max(work.flops / (peak * 1e6), work.bytes / (report.probe.read_gbps * 1e6));
    layer.stages.push_back(t);
  }
  return layer;
}

}  // namespace

Result<BenchLayerReport> bench_layer(const Context& context, const BenchLayerOptions& asked) {
  BenchLayerOptions options = asked;
  options.run_case.ranks = 1;
  options.run_case.engine = Engine::threads;
  const Case& c = options.run_case;
  PLAIT_ASSIGN_OR_RETURN(const std::vector<std::unique_ptr<Group>> groups, make_thread_groups(1));
  PLAIT_ASSIGN_OR_RETURN(CaseInputs inputs, make_inputs(context, c, rank_tokens(c, 0)));
  PLAIT_ASSIGN_OR_RETURN(LayerRun run, LayerRun::create(context, *groups.front(), c, std::move(inputs)));
  PLAIT_ASSIGN_OR_RETURN(MachineProbe probe, MachineProbe::create(context));
  LayerBench bench(options, run, probe);
  PLAIT_RETURN_IF_ERROR(bench.check());
  PLAIT_RETURN_IF_ERROR(bench.measure());
  BenchLayerReport report{
      .cpu = cpu_features().model, .tier = std::string(name(context.tier())), .threads = context.threads(), .run_case = c, .probe = probe.best()};
  report.interrupted = bench.interrupted();
  for (size_t i = 0; i < c.dispatchers.size(); ++i) report.layers.push_back(timing_of(bench, bench.rounds()[i], report, c.dispatchers[i]));
  if (options.progress && !report.interrupted) options.progress(1, "");
  return report;
}

}  // namespace plait
