#include "observe/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "config/case_fields.h"
#include "observe/json.h"
#include "observe/measure_gather.h"
#include "observe/verify_call.h"
#include "plait/version.h"

namespace plait {
namespace verify {
namespace {

constexpr size_t max_detail = 400;

struct RankLine {
  bool ok = false;
  std::array<char, max_detail> detail{};
};

struct Section {
  std::string_view name;
  Status (*run)(VerifyCall&);
};
constexpr Section sections[] = {
    {"shape", verify_shape},     {"numeric", verify_numeric},     {"numeric", verify_float64},   {"backward", verify_backward},
    {"routing", verify_routing}, {"precision", verify_precision}, {"fallback", verify_fallback},
};

Result<VerifyReport> run_sections(const VerifyOptions& options, Group& group) {
  Case run_case = options.run_case;
  PLAIT_RETURN_IF_ERROR(run_case.validate());
  if (run_case.ranks != group.size()) {
    return Status::invalid_argument(fmt::format("ranks = {}, but the group has {}: they must be equal", run_case.ranks, group.size()));
  }
  PLAIT_ASSIGN_OR_RETURN(run_case.threads, threads_per_rank(run_case));
  run_case.backward = true;
  PLAIT_ASSIGN_OR_RETURN(std::unique_ptr<Context> context, Context::create({.threads = run_case.threads, .kernel = ""}));
  std::span<const Dispatcher> available = available_dispatchers();
  VerifyCall call{options, run_case, *context, group, {available.begin(), available.end()}, {}};
  double done = 0;
  for (const Section& section : sections) {
    if (group.rank() == 0 && options.progress) options.progress(done / static_cast<double>(std::size(sections)), section.name);
    PLAIT_ASSIGN_OR_RETURN(bool stop, any_rank(group, "interruption", options.interrupted && options.interrupted()));
    if (stop) return Status::interrupted(fmt::format("verification stopped before section {}", section.name));
    PLAIT_RETURN_IF_ERROR(section.run(call));
    ++done;
  }
  return VerifyReport{run_case, std::move(call.lines)};
}

}  // namespace

Status VerifyCall::add(std::string_view section, std::string name, bool ok, std::string detail, std::string reproducer) {
  RankLine own{ok, {}};
  std::memcpy(own.detail.data(), detail.data(), std::min(detail.size(), max_detail - 1));
  PLAIT_ASSIGN_OR_RETURN(std::vector<RankLine> all, gather_one(group, "verification", own));
  auto shown = std::find_if(all.begin(), all.end(), [](const RankLine& line) { return !line.ok; });
  CheckLine line{std::string(section), std::move(name), shown == all.end(), "", ""};
  if (line.ok) shown = all.begin();
  line.detail = shown->detail.data();
  if (!line.ok) {
    line.detail = fmt::format("rank {}: {}", shown - all.begin(), line.detail);
    line.reproducer = reproducer.empty() ? fmt::format("plait verify {}", command_line_options(options.run_case)) : std::move(reproducer);
  }
  lines.push_back(std::move(line));
  return {};
}

Status VerifyCall::step(LayerRun& run, Dispatcher dispatcher) const {
  if (options.before_call) options.before_call(dispatcher, group.size(), run.parameters());
  PLAIT_RETURN_IF_ERROR(run.forward(dispatcher));
  return run.backward();
}

}  // namespace verify

bool VerifyReport::ok() const {
  return std::all_of(lines.begin(), lines.end(), [](const CheckLine& line) { return line.ok; });
}

Result<VerifyReport> verify_case(const VerifyOptions& options, Group& group) {
  Result<VerifyReport> report = verify::run_sections(options, group);
  if (!report.ok()) group.abort(report.status());
  return report;
}

std::string format_lines(const VerifyReport& report) {
  std::string out, section;
  for (const CheckLine& line : report.lines) {
    if (line.section != section) out += fmt::format("{}\n", section = line.section);
    out += fmt::format("  {:<6} {:<42} {}\n", line.ok ? "ok" : "FAILED", line.name, line.detail);
    if (!line.reproducer.empty()) out += fmt::format("         {}\n", line.reproducer);
  }
  auto num_failed = std::count_if(report.lines.begin(), report.lines.end(), [](const CheckLine& line) { return !line.ok; });
  return out + fmt::format("{} checks, {} failed\n", report.lines.size(), num_failed);
}

nlohmann::ordered_json to_json(const VerifyReport& report) {
  nlohmann::ordered_json json = {{"version", version()}, {"case", to_json(report.run_case)}, {"ok", report.ok()}};
  json["lines"] = nlohmann::ordered_json::array();
  for (const CheckLine& line : report.lines) {
    json["lines"].push_back(
        {{"section", line.section}, {"name", line.name}, {"ok", line.ok}, {"detail", line.detail}, {"reproducer", line.reproducer}});
  }
  return json;
}

}  // namespace plait
