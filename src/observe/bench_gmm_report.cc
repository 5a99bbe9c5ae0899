#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "observe/bench_gmm.h"

namespace plait {

std::string describe_machine(std::string_view cpu, std::string_view tier, int threads, const Probe& probe) {
  return fmt::format("{}, kernels {}, {} {}\nprobed: f32 {:.1f} GFLOP/s, bf16 {:.1f} GFLOP/s, memory read {:.1f} GB/s\n", cpu, tier, threads,
                     threads == 1 ? "thread" : "threads", probe.f32_gflops, probe.bf16_gflops, probe.read_gbps);
}

nlohmann::ordered_json to_json(const Probe& probe) {
  return {{"f32_gflops", probe.f32_gflops}, {"bf16_gflops", probe.bf16_gflops}, {"read_gbps", probe.read_gbps}};
}

std::string format_table(const BenchGmmReport& report) {
  std::string out = describe_machine(report.cpu, report.tier, report.threads, report.probe);
  out += fmt::format("{:>5} {:>5} {:>5} {:>4} {:>4} {:>7} {:>9} {:>9} {:>8} {:>6} {:>6} {:>6} {:>6} {:>6}\n", "H", "I", "rows", "E", "type", "op",
                     "best ms", "median", "GFLOP/s", "%peak", "GB/s", "%read", "%bound", "rounds");
  for (const GmmTiming& t : report.timings) {
    const GmmCase& c = t.shape;
    std::string type = std::string(name(c.dtype)) + (c.transposed_weights ? "t" : "") + (c.skew > 0 ? "z" : "");
    out += fmt::format("{:>5} {:>5} {:>5} {:>4} {:>4} {:>7} {:>9.3f} {:>9.3f} {:>8.1f} {:>6.1f} {:>6.1f} {:>6.1f} {:>6.1f} {:>6}\n", c.hidden,
                       c.intermediate, c.rows_per_expert, c.num_experts, type, t.op, t.best_ms, t.median_ms, t.gflops, 100 * t.share_of_peak, t.gbps,
                       100 * t.share_of_bandwidth, 100 * t.share_of_bound, t.rounds);
  }
  out += "Shares are of the best probe of this run; %bound: of min(peak, flops per byte * read bandwidth). t: weights [E,N,K]. z: skewed rows.\n";
  if (report.interrupted) out += "Interrupted: the table is not complete.\n";
  return out;
}

nlohmann::ordered_json to_json(const GmmTiming& t) {
  return {{"hidden", t.shape.hidden},
          {"intermediate", t.shape.intermediate},
          {"rows_per_expert", t.shape.rows_per_expert},
          {"num_experts", t.shape.num_experts},
          {"dtype", std::string(name(t.shape.dtype))},
          {"transposed_weights", t.shape.transposed_weights},
          {"skew", t.shape.skew},
          {"op", t.op},
          {"ms", {{"min", t.best_ms}, {"median", t.median_ms}, {"n", t.rounds}}},
          {"gflops", t.gflops},
          {"share_of_peak", t.share_of_peak},
          {"gbps", t.gbps},
          {"share_of_bandwidth", t.share_of_bandwidth},
          {"share_of_bound", t.share_of_bound}};
}

nlohmann::ordered_json to_json(const BenchGmmReport& report) {
  nlohmann::ordered_json json{{"cpu", report.cpu}, {"tier", report.tier}, {"threads", report.threads}};
  json["probe"] = to_json(report.probe);
  json["interrupted"] = report.interrupted;
  json["timings"] = nlohmann::ordered_json::array();
  for (const GmmTiming& t : report.timings) json["timings"].push_back(to_json(t));
  return json;
}

}  // namespace plait
