#pragma once
/// Makes a Case from a YAML file and command-line options, and tells of every fault at once.

#include <string>
#include <string_view>
#include <vector>

#include "config/case_fields.h"
#include "plait/config.h"

namespace plait {

/// Where a value was given. Later ones override earlier ones.
enum class SettingSource : uint8_t {
  stack_section,  ///< the sections that training stacks share: parallel, model
  case_section,   ///< `case:`
  option,         ///< the command line
};

struct Setting {
  const CaseField* field;
  std::string text;
  std::string where;  ///< "x.yaml:4" or "--ranks"
  SettingSource source;
};

class CaseBuilder {
 public:
  void add_file(const std::string& path);
  void add_option(std::string_view field, std::string text);
  void add_fault(std::string text) { faults_.push_back(std::move(text)); }

  /// The setting in force, or null where the field was given nowhere.
  const Setting* find(std::string_view field) const;
  /// "file:line: key" of what belongs to other frameworks.
  const std::vector<std::string>& ignored() const { return ignored_; }

  /// The valid case, or one invalid_argument with all faults.
  Result<Case> build();

 private:
  void apply(const Setting& setting, Case& to);
  void apply_all(SettingSource from, SettingSource to_source, Case& to);
  void apply_model(Case& to);
  void fit_topk(Case& to) const;
  void check_rules(const Case& of);
  void check_input(const Case& of);

  std::vector<Setting> settings_;
  std::vector<std::string> faults_;
  std::vector<std::string> ignored_;
};

}  // namespace plait
