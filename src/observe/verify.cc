#include "observe/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "config/case_fields.h"
#include "config/nearest.h"
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
    {"shape", verify_shape},     {"numeric", verify_numeric},     {"numeric", verify_float64},         {"backward", verify_backward},
    {"routing", verify_routing}, {"precision", verify_precision}, {"performance", verify_performance}, {"fallback", verify_fallback},
};

/// Those asked for, in the order of the list.
Result<std::vector<Section>> chosen_sections(const VerifyOptions& options) {
  std::span<const std::string> names = verify_section_names();
  for (const std::string& wanted : options.sections) {
    if (std::find(names.begin(), names.end(), wanted) == names.end()) {
      return Status::invalid_argument(fmt::format("section \"{}\" is not known; known are {}", wanted, join_choices(names)));
    }
  }
  std::vector<Section> chosen;
  for (const Section& section : sections) {
    bool wanted = std::find(options.sections.begin(), options.sections.end(), section.name) != options.sections.end();
    if (wanted || options.sections.empty()) chosen.push_back(section);
  }
  return chosen;
}

Result<VerifyReport> run_sections(const VerifyOptions& options, Group& group) {
  Case run_case = options.run_case;
  PLAIT_RETURN_IF_ERROR(run_case.validate());
  if (run_case.ranks != group.size()) {
    return Status::invalid_argument(fmt::format("ranks = {}, but the group has {}: they must be equal", run_case.ranks, group.size()));
  }
  if (run_case.layer.combine != Combine::exact) {
    return Status::invalid_argument("combine is reduced: its rounding differs, and verify compares bits; set it to exact");
  }
  PLAIT_ASSIGN_OR_RETURN(run_case.threads, threads_per_rank(run_case));
  run_case.backward = true;
  PLAIT_ASSIGN_OR_RETURN(std::unique_ptr<Context> context, Context::create({.threads = run_case.threads, .kernel = ""}));
  PLAIT_ASSIGN_OR_RETURN(std::vector<Section> chosen, chosen_sections(options));
  VerifyCall call{options, run_case, *context, group, baseline_first(), {}};
  double done = 0;
  for (const Section& section : chosen) {
    if (group.rank() == 0 && options.progress) options.progress(done / static_cast<double>(chosen.size()), section.name);
    PLAIT_ASSIGN_OR_RETURN(bool stop, any_rank(group, "interruption", options.interrupted && options.interrupted()));
    if (stop) return Status::interrupted(fmt::format("verification stopped before section {}", section.name));
    PLAIT_RETURN_IF_ERROR(section.run(call));
    ++done;
  }
  return VerifyReport{run_case, std::move(call.lines)};
}

}  // namespace

std::vector<Dispatcher> baseline_first() {
  std::span<const Dispatcher> available = all_dispatchers();
  std::vector<Dispatcher> list(available.begin(), available.end());
  std::stable_partition(list.begin(), list.end(), [](Dispatcher dispatcher) { return dispatcher == Dispatcher::alltoall; });
  return list;
}

std::string reproducer(const Case& run_case, std::string_view section) {
  return fmt::format("plait verify {} --sections {}", command_line_options(run_case), section);
}

Status VerifyCall::add(std::string_view section, std::string name, bool ok, std::string detail) {
  RankLine own{ok, {}};
  std::memcpy(own.detail.data(), detail.data(), std::min(detail.size(), max_detail - 1));
  PLAIT_ASSIGN_OR_RETURN(std::vector<RankLine> all, gather_one(group, "verification", own));
  auto shown = std::find_if(all.begin(), all.end(), [](const RankLine& line) { return !line.ok; });
  CheckLine line{std::string(section), std::move(name), shown == all.end(), "", ""};
  if (line.ok) shown = all.begin();
  line.detail = shown->detail.data();
  if (!line.ok) {
    line.detail = fmt::format("rank {}: {}", shown - all.begin(), line.detail);
    line.reproducer = reproducer(options.run_case, section);
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

std::span<const std::string> verify_section_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const verify::Section& section : verify::sections) {
      if (list.empty() || list.back() != section.name) list.emplace_back(section.name);
    }
    list.emplace_back("across-ranks");
    return list;
  }();
  return names;
}

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
