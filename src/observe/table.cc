#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>

#include "observe/routing_report.h"
#include "observe/run.h"

namespace plait {
namespace {

constexpr int name_width = 25, column_width = 11;  // 5 dispatchers fit into 80 columns
constexpr double megabyte = 1e6;
constexpr size_t max_step_lines = 12;

std::string milliseconds(double ms) { return fmt::format("{:.{}f}", ms, ms < 10 ? 3 : ms < 1000 ? 2 : 0); }
std::string percent(double share) { return fmt::format("{:.1f}", 100 * share); }
std::string megabytes(int64_t bytes) { return fmt::format("{:.2f}", static_cast<double>(bytes) / megabyte); }

struct TableRow {
  std::string_view name;
  std::string (*text)(const DispatcherReport&);
};

const TableRow rows[] = {
    {"step (ms)", [](const DispatcherReport& d) { return milliseconds(d.step.median); }},
    {"  forward", [](const DispatcherReport& d) { return milliseconds(d.forward.median); }},
    {"  backward", [](const DispatcherReport& d) { return milliseconds(d.backward.median); }},
    {"dispatch (ms)", [](const DispatcherReport& d) { return milliseconds(d.dispatch.median); }},
    {"combine", [](const DispatcherReport& d) { return milliseconds(d.combine.median); }},
    {"grouped matmul", [](const DispatcherReport& d) { return milliseconds(d.gmm.median); }},
    {"permute and unpermute", [](const DispatcherReport& d) { return milliseconds(d.permute.median); }},
    {"host (everything else)", [](const DispatcherReport& d) { return milliseconds(d.host.median); }},
    {"exposed communication", [](const DispatcherReport& d) { return milliseconds(d.exposed_comm.median); }},
    {"  share of step (%)", [](const DispatcherReport& d) { return percent(d.exposed_share); }},
    {"exchange alone (ms)", [](const DispatcherReport& d) { return milliseconds(d.comm_only.median); }},
    {"utilisation (% of peak)", [](const DispatcherReport& d) { return percent(d.utilisation); }},
    {"tokens/s per rank", [](const DispatcherReport& d) { return fmt::format("{:.0f}", d.tokens_per_s); }},
    {"sent per rank (MB)", [](const DispatcherReport& d) { return megabytes(d.bytes_sent); }},
    {"peak memory (MB)", [](const DispatcherReport& d) { return megabytes(d.peak_bytes); }},
    {"resident memory (MB)", [](const DispatcherReport& d) { return megabytes(d.resident_bytes); }},
};

std::string line(std::string_view name, const RunReport& report, const std::function<std::string(const DispatcherReport&)>& text) {
  std::string out = fmt::format("{:<{}}", name, name_width);
  for (const DispatcherReport& dispatcher : report.dispatchers) out += fmt::format("{:>{}}", text(dispatcher), column_width);
  return out + "\n";
}

std::string heading(const RunReport& report) {
  const Case& c = report.run_case;
  std::string shared = c.layer.shared_intermediate > 0 ? fmt::format(", shared expert {}", c.layer.shared_intermediate) : "";
  std::string out = fmt::format("{}{}{} experts, top {}, H {}, I {}{}, {}\n", c.model, c.model.empty() ? "" : ": ", c.layer.router.num_experts,
                                c.layer.router.top_k, c.layer.hidden, c.layer.intermediate, shared, name(c.layer.dtype));
  out += fmt::format("{} ranks ({}) with {} tokens and {} {} each\n", c.ranks, name(c.engine), c.tokens, c.threads,
                     c.threads == 1 ? "thread" : "threads");
  const MachineReport& m = report.machine;
  out += fmt::format("{}\n{} usable CPUs, kernels {}, peak {:.0f} GFLOP/s, memory read {:.1f} GB/s\n", m.cpu, m.usable_cpus, m.tier, m.peak_gflops,
                     m.read_gbps);
  return out;
}

std::string comparison_lines(const Comparison& c, const RunReport& report) {
  auto found = std::find_if(report.dispatchers.begin(), report.dispatchers.end(), [&](const DispatcherReport& d) { return d.dispatcher == c.b; });
  double eta = found == report.dispatchers.end() ? 0.0 : found->eta;
  std::string out = fmt::format("{} against {}: bitwise equal {}, speed-up {:.3f}, overlap eff. {:.3f}\n", name(c.b), name(c.a),
                                c.bitwise_equal ? "yes"
                                : c.in_contract ? "NO"
                                                : "no (combine: reduced, outside the bit contract)",
                                c.speedup, eta);
  out += "  largest differences:\n";
  out += fmt::format("  y {:.3g}, dx {:.3g}, dW gate_up {:.3g}, dW down {:.3g}, routing weights {:.3g}\n", c.diff_y, c.diff_dx, c.diff_dw_gate_up,
                     c.diff_dw_down, c.diff_dweights);
  if (!c.first_difference.empty()) out += fmt::format("  {}\n", c.first_difference);
  return out;
}

/// Losses of the baseline, and whether the others are the same; a long training shows a dozen of its steps.
std::string training_lines(const RunReport& report) {
  size_t num_steps = report.dispatchers.front().loss.size();
  std::string out = "\ntraining" + line("", report, [](const DispatcherReport& d) { return std::string(name(d.dispatcher)); }).substr(8);
  size_t stride = (num_steps + max_step_lines - 1) / max_step_lines;
  for (size_t step = 0; step < num_steps; ++step) {
    if (step % stride != 0 && step + 1 != num_steps) continue;
    out += line(fmt::format("loss of step {}", step + 1), report, [&](const DispatcherReport& d) { return fmt::format("{:.6f}", d.loss[step]); });
  }
  out += line("last gradient norm", report, [&](const DispatcherReport& d) { return fmt::format("{:.4g}", d.grad_norm.back()); });
  out += line("non-finite gradients", report, [](const DispatcherReport& d) { return fmt::format("{}", d.nonfinite); });
  return out;
}

}  // namespace

std::string format_table(const RunReport& report) {
  std::string out = heading(report) + "\n";
  out += line("", report, [](const DispatcherReport& d) { return std::string(name(d.dispatcher)); });
  for (const TableRow& row : rows) out += line(row.name, report, row.text);
  if (!report.dispatchers.empty()) {
    out += fmt::format("medians of {} rounds, each the slowest rank's time\n", report.dispatchers.front().step.n);
  }
  for (const DispatcherReport& d : report.dispatchers) {
    if (!d.fallback.empty()) out += fmt::format("{}: {}\n", name(d.dispatcher), d.fallback);
  }
  if (!report.comparisons.empty()) out += "\n";
  for (const Comparison& comparison : report.comparisons) out += comparison_lines(comparison, report);
  if (!report.dispatchers.empty() && !report.dispatchers.front().loss.empty()) out += training_lines(report);
  if (!report.routing.empty()) out += fmt::format("\nrouting: {}\n", describe(report.routing.back()));
  if (report.interrupted) out += "interrupted: these are the rounds and steps that were done\n";
  return out;
}

}  // namespace plait
