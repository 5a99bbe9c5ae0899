#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "observe/bench_layer.h"

namespace plait {
namespace {

std::string format_layer(const LayerTiming& layer) {
  std::string out =
      fmt::format("\n{}: step {:.3f} ms (median {:.3f}, {} rounds)\n", name(layer.dispatcher), layer.best_ms, layer.median_ms, layer.rounds);
  out += fmt::format("  {:<20} {:>9} {:>9} {:>7} {:>9} {:>7}\n", "stage", "best ms", "median", "% step", "bound ms", "x bound");
  for (const StageTiming& t : layer.stages) {
    out += fmt::format("  {:<20} {:>9.3f} {:>9.3f} {:>7.1f}", name(t.stage), t.best_ms, t.median_ms, 100 * t.share);
    out += t.bound_ms > 0 ? fmt::format(" {:>9.3f} {:>7.2f}\n", t.bound_ms, t.over_bound()) : fmt::format(" {:>9} {:>7}\n", "-", "-");
  }
  return out;
}

}  // namespace

std::string format_table(const BenchLayerReport& report) {
  const Case& c = report.run_case;
  std::string out = describe_machine(report.cpu, report.tier, report.threads, report.probe);
  out += fmt::format("one rank, {} tokens, H {}, I {}, {} experts, top-{}, {}, {}\n", c.tokens, c.layer.hidden, c.layer.intermediate,
                     c.layer.router.num_experts, c.layer.router.top_k, name(c.layer.dtype), c.backward ? "forward and backward" : "forward");
  for (const LayerTiming& layer : report.layers) {
    if (layer.rounds > 0) out += format_layer(layer);
  }
  out += "\nbound: max(flops / probed peak, bytes / read bandwidth). Stages that only a dispatcher of copies has, and waits, have none.\n";
  if (report.interrupted) out += "Interrupted: fewer rounds than asked for.\n";
  return out;
}

nlohmann::ordered_json to_json(const BenchLayerReport& report) {
  const Case& c = report.run_case;
  nlohmann::ordered_json json{{"cpu", report.cpu}, {"tier", report.tier}, {"threads", report.threads}};
  json["probe"] = to_json(report.probe);
  json["shape"] = {{"tokens", c.tokens},
                   {"hidden", c.layer.hidden},
                   {"intermediate", c.layer.intermediate},
                   {"experts", c.layer.router.num_experts},
                   {"topk", c.layer.router.top_k},
                   {"dtype", std::string(name(c.layer.dtype))},
                   {"backward", c.backward}};
  json["interrupted"] = report.interrupted;
  for (const LayerTiming& layer : report.layers) {
    nlohmann::ordered_json& item = json["dispatchers"][std::string(name(layer.dispatcher))];
    item["step_ms"] = {{"min", layer.best_ms}, {"median", layer.median_ms}, {"n", layer.rounds}};
    for (const StageTiming& t : layer.stages) {
      item["stages"][std::string(name(t.stage))] = {
          {"ms", {{"min", t.best_ms}, {"median", t.median_ms}}}, {"share", t.share}, {"bound_ms", t.bound_ms}, {"over_bound", t.over_bound()}};
    }
  }
  return json;
}

}  // namespace plait
