#include "cli/case_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "cli/output.h"
#include "config/nearest.h"

namespace plait::cli {
namespace {

std::string help_of(const CaseField& field) {
  std::string help(field.help);
  if (field.choices != nullptr) help += ": " + join_choices(field.choices());
  std::string standard = to_text(field.get(Case{}));
  bool from_model = field.group == FieldGroup::shape && field.name != "tokens" && field.name != "dtype";
  if (!standard.empty() && !from_model && field.name != "scale") help += fmt::format(" [{}]", standard);
  return help;
}

// A launcher decides how many ranks there are; what the case says must not contradict it.
void take_ranks_of(const Standing& standing, CaseBuilder& builder) {
  if (!standing.joined) return;
  const Launch& launch = standing.launch;
  if (launch.local_size != launch.size) {
    builder.add_fault(fmt::format("{} started {} ranks, {} of them on this machine: this build has no engine between machines, start all on one",
                                  launch.launcher, launch.size, launch.local_size));
  }
  const Setting* ranks = builder.find("ranks");
  std::string size = std::to_string(launch.size);
  bool contradicts = ranks != nullptr && ranks->source == SettingSource::option && ranks->text != size;
  if (contradicts) {
    builder.add_fault(
        fmt::format("--ranks {}, but {} started {} ranks: leave --ranks out, or make them equal", ranks->text, standing.launch.launcher, size));
  } else {
    builder.add_option("ranks", size);
  }
}

}  // namespace

void CaseOptions::attach(CLI::App& command) {
  command.add_option("--config", config_, "Settings in YAML; without it and --model: configs/default.yaml")->type_name("FILE")->group("Case");
  for (const CaseField& field : case_fields()) {
    if (!field.has_option()) continue;
    Value& value = values_.emplace_back(Value{&field, "", nullptr});
    std::string option = option_name(field.name);
    std::string heading = field.name == "model" || field.name == "scale" ? "Case" : std::string(title(field.group));
    if (field.is_flag()) {
      std::string names = fmt::format("{}{{true}},--no-{}{{false}}", option, option.substr(2));
      value.option = command.add_flag(names, value.text, help_of(field));
    } else {
      value.option = command.add_option(option, value.text, help_of(field))->type_name(std::string(field.metavar));
    }
    value.option->group(heading);
  }
}

bool CaseOptions::any_given_but(std::string_view field) const {
  bool any = !config_.empty();
  for (const Value& value : values_) any = any || (value.option->count() > 0 && value.field->name != field);
  return any;
}

bool CaseOptions::given(std::string_view field) const {
  for (const Value& value : values_) {
    if (value.field->name == field) return value.option->count() > 0;
  }
  return false;
}

void CaseOptions::add_given(CaseBuilder& builder) const {
  for (const Value& value : values_) {
    if (value.option->count() > 0) builder.add_option(value.field->name, value.text);
  }
}

Result<Case> CaseOptions::resolve(const Program& program, const Standing& standing) const {
  CaseBuilder builder;
  for (const std::string& fault : program.faults) builder.add_fault(fault);
  if (!config_.empty()) {
    builder.add_file(config_);
  } else if (!given("model")) {
    std::string standard = default_config_path();
    if (!standard.empty()) builder.add_file(standard);
  }
  add_given(builder);
  take_ranks_of(standing, builder);
  bool first_to_tell = !standing.joined || (program.report_fd < 0 && standing.launch.rank == 0);
  if (first_to_tell && !program.quiet) {
    for (const std::string& ignored : builder.ignored()) print_note(program.command, "not used, not ours: " + ignored);
  }
  Result<Case> built = builder.build();
  if (built.ok() && built->engine == Engine::threads && standing.joined) {
    return Status::invalid_argument(
        fmt::format("engine threads runs all ranks in one process, but {} started {} processes: take --engine shm, or start one process",
                    standing.launch.launcher, standing.launch.size));
  }
  return built;
}

Result<Case> CaseOptions::resolve_alone(const Program& program, Start start) const {
  CaseBuilder builder;
  for (const auto& [field, text] : start) builder.add_option(field, std::string(text));
  for (const std::string& fault : program.faults) builder.add_fault(fault);
  if (!config_.empty()) builder.add_file(config_);
  add_given(builder);
  return builder.build();
}

std::string default_config_path() {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path program = fs::read_symlink("/proc/self/exe", error);
  constexpr std::string_view places[] = {"../share/plait/configs/default.yaml", "configs/default.yaml", "../configs/default.yaml",
                                         "../../configs/default.yaml"};
  for (std::string_view place : places) {
    fs::path candidate = (program.parent_path() / place).lexically_normal();
    if (!program.empty() && fs::is_regular_file(candidate, error)) return candidate.string();
  }
  fs::path source = fs::path(PLAIT_SOURCE_DIR) / "configs/default.yaml";
  return fs::is_regular_file(source, error) ? source.string() : "";
}

}  // namespace plait::cli
