#include "observe/json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <variant>

#include "config/case_fields.h"
#include "observe/run.h"
#include "plait/version.h"

namespace plait {
namespace {

using Json = nlohmann::ordered_json;

/// JSON has no infinity and no NaN: they become null.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json numbers(const std::vector<double>& values) {
  Json list = Json::array();
  for (double value : values) list.push_back(number(value));
  return list;
}

Json to_json(const Timing& t) { return {{"median", t.median}, {"min", t.min}, {"max", t.max}, {"n", t.n}}; }

Json to_json(const MachineReport& m) {
  return {{"cpu", m.cpu}, {"tier", m.tier}, {"usable_cpus", m.usable_cpus}, {"peak_gflops", m.peak_gflops}, {"read_gbps", m.read_gbps}};
}

Json per_rank(const DispatcherReport& d) {
  Json list = Json::array();
  for (size_t rank = 0; rank < d.step_per_rank.size(); ++rank) {
    list.push_back({{"rank", rank},
                    {"step", to_json(d.step_per_rank[rank])},
                    {"bytes_sent", rank < d.bytes_sent_per_rank.size() ? d.bytes_sent_per_rank[rank] : 0},
                    {"peak_bytes", rank < d.peak_bytes_per_rank.size() ? d.peak_bytes_per_rank[rank] : 0},
                    {"waited", to_json(d.waited_per_rank[rank])},
                    {"waited_for", d.waited_for_per_rank[rank] < 0 ? Json(nullptr) : Json(d.waited_for_per_rank[rank])},
                    {"tiles", d.tiles_per_rank[rank]},
                    {"chains_late", d.chains_late_per_rank[rank]},
                    {"early_tiles", d.early_tiles_per_rank[rank]}});
  }
  return list;
}

Json to_json(const DispatcherReport& d) {
  return {{"step", to_json(d.step)},
          {"forward", to_json(d.forward)},
          {"backward", to_json(d.backward)},
          {"comm", to_json(d.comm)},
          {"dispatch", to_json(d.dispatch)},
          {"combine", to_json(d.combine)},
          {"gmm", to_json(d.gmm)},
          {"permute", to_json(d.permute)},
          {"host", to_json(d.host)},
          {"utilisation", number(d.utilisation)},
          {"compute_only", to_json(d.compute_only)},
          {"comm_only", to_json(d.comm_only)},
          {"exposed_comm", to_json(d.exposed_comm)},
          {"exposed_share", number(d.exposed_share)},
          {"eta", number(d.eta)},
          {"tokens_per_s", number(d.tokens_per_s)},
          {"bytes_sent", d.bytes_sent},
          {"peak_bytes", d.peak_bytes},
          {"resident_bytes", d.resident_bytes},
          {"chunks", d.chunks},
          {"fallback", d.fallback.empty() ? Json(nullptr) : Json(d.fallback)},
          {"per_rank", per_rank(d)}};
}

Json to_json(const Comparison& c) {
  Json differences = {{"y", number(c.diff_y)},
                      {"dx", number(c.diff_dx)},
                      {"dw_gate_up", number(c.diff_dw_gate_up)},
                      {"dw_down", number(c.diff_dw_down)},
                      {"dweights", number(c.diff_dweights)}};
  return {{"a", name(c.a)},
          {"b", name(c.b)},
          {"bitwise_equal", c.bitwise_equal},
          {"in_contract", c.in_contract},
          {"max_abs_diff", differences},
          {"speedup", number(c.speedup)},
          {"first_difference", c.first_difference.empty() ? Json(nullptr) : Json(c.first_difference)}};
}

Json to_json(const RoutingReport& r) {
  return {{"tokens_per_expert", r.tokens_per_expert}, {"max_over_mean", r.max_over_mean}, {"empty_experts", r.empty_experts}, {"entropy", r.entropy}};
}

void add_training(const RunReport& report, Json& json) {
  for (const DispatcherReport& d : report.dispatchers) {
    std::string key(name(d.dispatcher));
    json["loss"][key] = numbers(d.loss);
    json["grad_norm"][key] = numbers(d.grad_norm);
    json["nonfinite"][key] = d.nonfinite;
  }
}

}  // namespace

Json to_json(const Case& run_case) {
  Json json = Json::object();
  for (const CaseField& field : case_fields()) {
    std::visit([&](const auto& value) { json[std::string(field.name)] = value; }, field.get(run_case));
  }
  return json;
}

Json to_json(const RunReport& report) {
  bool trained = !report.dispatchers.empty() && !report.dispatchers.front().loss.empty();
  Json json = {{"version", version()}, {"machine", to_json(report.machine)}, {"case", to_json(report.run_case)}};
  json["dispatchers"] = Json::object();
  for (const DispatcherReport& d : report.dispatchers) json["dispatchers"][std::string(name(d.dispatcher))] = to_json(d);
  json["compare"] = Json::array();
  for (const Comparison& comparison : report.comparisons) json["compare"].push_back(to_json(comparison));
  if (trained) add_training(report, json);
  Json routing = Json::array();
  for (const RoutingReport& item : report.routing) routing.push_back(to_json(item));
  json["routing"] = trained ? routing : routing.empty() ? Json(nullptr) : routing.front();
  json["interrupted"] = report.interrupted;
  return json;
}

}  // namespace plait
