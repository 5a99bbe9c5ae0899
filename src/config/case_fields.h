#pragma once
/// The values of a Case, each once: YAML keys, command-line options and the JSON `case` object are all made from this table.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "plait/config.h"

namespace plait {

using FieldValue = std::variant<bool, int64_t, uint64_t, double, std::string, std::vector<std::string>>;

/// The headings of help texts, in their order.
enum class FieldGroup : uint8_t { shape, run, routing, plan };
std::string_view title(FieldGroup group);

struct CaseField {
  std::string_view name;     ///< YAML key and JSON key, "shared_expert"; the option is "--shared-expert"
  std::string_view metavar;  ///< "N", "FILE", "" for a flag
  FieldGroup group;
  std::string_view help;
  std::string_view allowed;                   ///< "a whole number of at least 1"; "" where `choices` says it
  std::vector<std::string> (*choices)();      ///< the names that are allowed, or null
  bool (*set)(Case&, std::string_view text);  ///< false where the text is not allowed; the case is untouched then
  FieldValue (*get)(const Case&);

  bool is_flag() const { return metavar.empty(); }
  bool is_list() const { return name == "dispatcher" || name == "apply_modules"; }
  bool has_option() const { return name != "apply_modules"; }
  /// What separates the items of a list's text; a module pattern may hold commas.
  char separator() const { return name == "apply_modules" ? '\n' : ','; }
};

/// Example (JSON): for (const CaseField& f : case_fields()) std::visit([&](const auto& v) { json[f.name] = v; }, f.get(run_case));
std::span<const CaseField> case_fields();
/// `name` with - or _ between words; null where there is none.
const CaseField* find_case_field(std::string_view name);
std::vector<std::string> case_field_names();
/// "shared_expert" -> "--shared-expert".
std::string option_name(std::string_view field);

/// Sets a field from text. The error shows the value, what is allowed and the nearest name.
Status set_field(const CaseField& field, std::string_view text, Case& to);
std::string to_text(const FieldValue& value);

/// The options that make this case from nothing but the program, "--model tiny --ranks 2 --dtype f32": for reproducer lines.
std::string command_line_options(const Case& of);

}  // namespace plait
