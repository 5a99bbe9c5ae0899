#pragma once
/// `plait bench layer`: one rank's whole layer, stage by stage, each beside the time that its arithmetic and its bytes take at what the machine
/// was probed to reach in the same run.

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "observe/bench_gmm.h"
#include "plait/config.h"
#include "plait/context.h"
#include "plait/counters.h"
#include "plait/status.h"

namespace plait {

/// What a stage has to do at least: floating-point operations, and bytes that must be read or written once. Zero: nothing is said of it.
struct StageWork {
  double flops = 0, bytes = 0;
};
/// Of one step of a group of one rank with `rows` routed rows; forward alone or with the case's backward.
StageWork stage_work(const Case& run_case, int64_t rows, Stage stage, Dispatcher dispatcher);

struct StageTiming {
  Stage stage = Stage::other;
  double best_ms = 0, median_ms = 0;
  double share = 0;     ///< of the step, by medians
  double bound_ms = 0;  ///< max(flops / probed peak, bytes / probed read bandwidth); 0: not known
  double over_bound() const { return bound_ms > 0 ? best_ms / bound_ms : 0; }
};

struct LayerTiming {
  Dispatcher dispatcher = Dispatcher::alltoall;
  double best_ms = 0, median_ms = 0;  ///< of the step
  int64_t rounds = 0;
  std::vector<StageTiming> stages = {};  ///< those that took time, in the order of Stage
};

struct BenchLayerOptions {
  Case run_case;  ///< run on a group of one rank, whatever its ranks
  double seconds = 2;
  std::function<void(double done, std::string_view what)> progress;
  std::function<bool()> interrupted;
};

struct BenchLayerReport {
  std::string cpu, tier;
  int threads = 0;
  Case run_case;
  Probe probe = {};
  std::vector<LayerTiming> layers = {};  ///< one per dispatcher
  bool interrupted = false;              ///< partial: the user stopped it
};

/// The dispatchers take turns. Their results are compared to the bit before anything is timed; a difference is an `internal` error.
Result<BenchLayerReport> bench_layer(const Context& context, const BenchLayerOptions& options);
std::string format_table(const BenchLayerReport& report);
nlohmann::ordered_json to_json(const BenchLayerReport& report);

}  // namespace plait
