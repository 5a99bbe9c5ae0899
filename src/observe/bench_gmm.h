#pragma once
/// `plait bench gmm`: grouped matmul forward, dX and dW over a grid of shapes, beside the probed peak, checked before timed.

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "plait/context.h"
#include "plait/status.h"

namespace plait {

/// What this machine reaches with its registers alone and from memory, probed in this process.
struct Probe {
  double f32_gflops = 0, bf16_gflops = 0;  ///< per the given threads together; bf16: dot-product instructions where the tier has them
  double read_gbps = 0;
};
Result<Probe> probe_machine(const Context& context);
/// The two lines with which a bench's table begins.
std::string describe_machine(std::string_view cpu, std::string_view tier, int threads, const Probe& probe);
nlohmann::ordered_json to_json(const Probe& probe);

/// The gate_up matmul of a layer: x (rows, H) times weights (E, H, 2I).
struct GmmCase {
  int64_t hidden, intermediate, rows_per_expert, num_experts;
  DType dtype;
  bool transposed_weights;  ///< weights stored [E,N,K]
  double skew;              ///< Zipf exponent of the rows per expert
};

struct GmmTiming {
  GmmCase shape{};
  std::string op;  ///< "forward", "dx", "dw"
  double best_ms = 0, median_ms = 0;
  double gflops = 0;  ///< from the best time
  double share_of_peak = 0;
  double gbps = 0;  ///< bytes that must move once, over the best time
  double share_of_bandwidth = 0;
  double share_of_bound = 0;  ///< of min(probed peak, flops per byte * probed bandwidth)
  int64_t rounds = 0;
};

struct BenchGmmOptions {
  std::vector<GmmCase> cases;  ///< empty: the default grid
  double seconds_per_case = 0.5;
  std::function<void(double done, std::string_view what)> progress;
  std::function<bool()> interrupted;
};

struct BenchGmmReport {
  std::string cpu, tier;
  int threads = 0;
  Probe probe = {};
  std::vector<GmmTiming> timings = {};
  bool interrupted = false;  ///< partial: the user stopped it
};
std::vector<GmmCase> default_gmm_cases();
/// Rows per expert of a case: rows_per_expert for all, or (skew > 0) as many in all, shared out by Zipf's law in a fixed shuffled order.
std::vector<int64_t> gmm_case_rows(const GmmCase& shape);
/// Every result is compared with the reference kernels before it is timed; a difference is an `internal` error that names the element.
Result<BenchGmmReport> bench_gmm(const Context& context, const BenchGmmOptions& options);
std::string format_table(const BenchGmmReport& report);
nlohmann::ordered_json to_json(const BenchGmmReport& report);
/// One timing alone: a line of a JSON-lines file.
nlohmann::ordered_json to_json(const GmmTiming& timing);

}  // namespace plait
