#include "config/case_builder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "config/case_faults.h"
#include "config/sections.h"

namespace plait {
namespace {

bool names_a_preset(const Setting& setting) { return setting.field->name == "model" || setting.field->name == "scale"; }

}  // namespace

void CaseBuilder::add_file(const std::string& path) {
  SectionReading reading = read_sections(path);
  settings_.insert(settings_.end(), reading.settings.begin(), reading.settings.end());
  faults_.insert(faults_.end(), reading.faults.begin(), reading.faults.end());
  ignored_.insert(ignored_.end(), reading.ignored.begin(), reading.ignored.end());
}

void CaseBuilder::add_option(std::string_view field, std::string text) {
  settings_.push_back({find_case_field(field), std::move(text), option_name(field), SettingSource::option});
}

const Setting* CaseBuilder::find(std::string_view field) const {
  const Setting* found = nullptr;
  for (const Setting& setting : settings_) {
    if (setting.field->name == field && (found == nullptr || setting.source >= found->source)) found = &setting;
  }
  return found;
}

void CaseBuilder::apply(const Setting& setting, Case& to) {
  Status status = set_field(*setting.field, setting.text, to);
  if (status.ok()) return;
  bool from_option = setting.source == SettingSource::option;  // its name stands for the field's
  faults_.push_back(from_option ? setting.where + status.message().substr(setting.field->name.size())
                                : fmt::format("{}: {}", setting.where, status.message()));
}

void CaseBuilder::apply_all(SettingSource from, SettingSource to_source, Case& to) {
  for (int source = static_cast<int>(from); source <= static_cast<int>(to_source); ++source) {
    for (const Setting& setting : settings_) {
      if (static_cast<int>(setting.source) == source && !names_a_preset(setting)) apply(setting, to);
    }
  }
}

void CaseBuilder::apply_model(Case& to) {
  const Setting* model = find("model");
  const Setting* scale = find("scale");
  Case named;
  if (model != nullptr) apply(*model, named);
  if (scale != nullptr) apply(*scale, named);
  if (model == nullptr && scale != nullptr) faults_.push_back(fmt::format("{}: scale needs a model: it shrinks a preset's H and I", scale->where));
  if (named.model.empty()) return;
  if (Status status = apply_preset(named.model, named.scale, to); !status.ok()) faults_.push_back(status.message());
}

/// Fewer experts asked for on the command line than a file's or model's tokens choose: they choose them all.
void CaseBuilder::fit_topk(Case& to) const {
  const Setting *experts = find("experts"), *topk = find("topk");
  if (experts == nullptr || experts->source != SettingSource::option || (topk != nullptr && topk->source == SettingSource::option)) return;
  RouterConfig& router = to.layer.router;
  if (router.num_experts > 0) router.top_k = std::min(router.top_k, router.num_experts);
}

void CaseBuilder::check_rules(const Case& of) {
  for (const CaseFault& fault : case_faults(of)) {
    std::vector<std::string> origins;
    for (std::string_view field : fault.fields) {
      if (const Setting* setting = find(field)) origins.push_back(fmt::format("{}: {}", field, setting->where));
    }
    faults_.push_back(origins.empty() ? fault.text : fmt::format("{} ({})", fault.text, fmt::join(origins, ", ")));
  }
}

void CaseBuilder::check_input(const Case& of) {
  if (of.input.empty()) return;
  std::string_view where = find("input")->where;
  std::error_code error;
  if (std::filesystem::is_directory(of.input, error)) {
    faults_.push_back(fmt::format("{}: input {} is a directory; name a file", where, of.input));
  } else if (!std::ifstream(of.input)) {
    faults_.push_back(fmt::format("{}: input {} cannot be read: {}", where, of.input, std::strerror(errno)));
  } else if (of.tokens > 0 && std::filesystem::is_regular_file(of.input, error) && std::filesystem::file_size(of.input, error) == 0) {
    faults_.push_back(fmt::format("{}: input {} is empty: it holds no tokens", where, of.input));
  }
}

Result<Case> CaseBuilder::build() {
  const Setting* model = find("model");
  bool model_from_option = model != nullptr && model->source == SettingSource::option;
  Case result;
  if (!model_from_option) apply_model(result);
  apply_all(SettingSource::stack_section, SettingSource::case_section, result);
  if (model_from_option) apply_model(result);
  apply_all(SettingSource::option, SettingSource::option, result);
  fit_topk(result);
  const bool as_loop = !result.fused_ops || !result.grouped_expert_matmul;
  if (as_loop && find("dispatcher") == nullptr) result.dispatchers = {Dispatcher::eager, Dispatcher::alltoall};
  if (faults_.empty()) {
    check_rules(result);
    check_input(result);
  }
  if (!faults_.empty()) return faults_status(faults_);
  if (!result.grouped_expert_matmul) {
    std::replace(result.dispatchers.begin(), result.dispatchers.end(), Dispatcher::alltoall, Dispatcher::eager);
    result.dispatchers.erase(std::unique(result.dispatchers.begin(), result.dispatchers.end()), result.dispatchers.end());
  }
  return result;
}

Result<Case> load_case(const std::string& path, std::vector<std::string>* ignored) {
  CaseBuilder builder;
  builder.add_file(path);
  if (ignored != nullptr) ignored->insert(ignored->end(), builder.ignored().begin(), builder.ignored().end());
  return builder.build();
}

}  // namespace plait
