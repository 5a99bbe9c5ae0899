#include <fmt/format.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "base/status_macros.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/output.h"
#include "cli/text.h"
#include "config/case_faults.h"
#include "plait/context.h"
#include "plait/env.h"
#include "plait/version.h"

namespace plait::cli {
namespace {

using Json = nlohmann::ordered_json;
constexpr int info_indent = 20;

// "always", "madvise" or "never": the word in brackets of the kernel's setting; "unknown" where it has none.
std::string huge_page_mode() {
  std::ifstream in("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  size_t open = text.find('['), close = text.find(']');
  return open == std::string::npos || close == std::string::npos ? "unknown" : text.substr(open + 1, close - open - 1);
}

bool is_available(Engine engine) {
  for (Engine other : available_engines()) {
    if (other == engine) return true;
  }
  return false;
}

std::string tier_text(const TierState& tier, const Result<Tier>& chosen) {
  if (!tier.usable) return "no: " + tier.reason;
  return chosen.ok() && *chosen == tier.tier ? "usable, chosen" : "usable";
}

// "60 (default)", "7.5 (default 60)", "not set".
std::string value_text(const EnvKnob& knob) {
  auto shown = [](const std::string& value) { return value.empty() ? "not set" : value; };
  if (knob.current != knob.default_value) return fmt::format("{} (default {})", shown(knob.current), shown(knob.default_value));
  return knob.current.empty() ? "not set" : knob.current + " (default)";
}

struct Info {
  Result<Tier> chosen = default_tier();
  std::vector<TierState> tiers = tier_states();
  std::vector<EnvKnob> knobs = env_knobs();
  std::string cpu = cpu_features().model;
  int num_cpus = usable_cpus();
  int64_t memory_bytes = available_memory_bytes("");
  std::string huge_pages = huge_page_mode();
};

std::string text_of(const Info& info, int columns) {
  auto line = [columns](std::string_view left, std::string_view right) { return two_columns(left, right, info_indent, columns); };
  std::string out = fmt::format("plait {}\n\nMachine\n", version());
  out += line("CPU", info.cpu);
  out += line("usable CPUs", std::to_string(info.num_cpus));
  constexpr double gibibyte = 1 << 30;
  out += line("available memory", fmt::format("{:.1f} GiB", static_cast<double>(info.memory_bytes) / gibibyte));
  out += line("huge pages", info.huge_pages);
  out += "\nKernel tiers (all give the same bits)\n";
  for (const TierState& tier : info.tiers) out += line(name(tier.tier), tier_text(tier, info.chosen));
  out += "\nEngines\n";
  for (Engine engine : {Engine::threads, Engine::shm, Engine::ucx})
    out += line(name(engine), is_available(engine) ? "available" : "not in this build");
  out += "\nDispatchers\n  ";
  for (Dispatcher dispatcher : all_dispatchers()) out += fmt::format("{} ", name(dispatcher));
  out.back() = '\n';
  out += "\nEnvironment\n";
  for (const EnvKnob& knob : info.knobs) out += line(knob.name, fmt::format("{}. {}", value_text(knob), knob.text));
  return out;
}

Json json_of(const Info& info) {
  Json json = {
      {"version", version()},
      {"machine", {{"cpu", info.cpu}, {"usable_cpus", info.num_cpus}, {"available_bytes", info.memory_bytes}, {"huge_pages", info.huge_pages}}}};
  json["chosen_tier"] = info.chosen.ok() ? Json(name(*info.chosen)) : Json(nullptr);
  json["tiers"] = Json::array();
  for (const TierState& tier : info.tiers) json["tiers"].push_back({{"name", name(tier.tier)}, {"usable", tier.usable}, {"reason", tier.reason}});
  json["engines"] = Json::array();
  for (Engine engine : {Engine::threads, Engine::shm, Engine::ucx}) {
    json["engines"].push_back({{"name", name(engine)}, {"available", is_available(engine)}});
  }
  json["dispatchers"] = Json::array();
  for (Dispatcher dispatcher : all_dispatchers()) json["dispatchers"].push_back(name(dispatcher));
  json["environment"] = Json::array();
  for (const EnvKnob& knob : info.knobs) {
    json["environment"].push_back({{"name", knob.name}, {"default", knob.default_value}, {"current", knob.current}, {"text", knob.text}});
  }
  return json;
}

int show_info(const Program& program) {
  if (Status status = check_faults(program); !status.ok()) return fail(program, status);
  if (Status status = check_json_path(program.json); !status.ok()) return fail(program, status);
  Info info;
  if (program.json != "-") print_result(text_of(info, text_columns()));
  if (Status status = write_json(program.json, json_of(info)); !status.ok()) return fail(program, status);
  return info.chosen.ok() ? 0 : fail(program, info.chosen.status());
}

}  // namespace

void add_info_command(CLI::App& app, Program& program) {
  CLI::App* command = app.add_subcommand("info", "Show the machine, kernel tiers, engines and every environment knob");
  add_common_options(*command, program);
  command->footer("Example\n  plait info --json info.json");
  command->callback([&program] { program.action = [&program] { return show_info(program); }; });
}

}  // namespace plait::cli
