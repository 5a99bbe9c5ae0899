#include "config/sections.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "config/nearest.h"
#include "config/presets.h"
#include "config/yaml_file.h"

namespace plait {
namespace {

// Keys that training stacks already write, and the field that each sets.
struct StackKey {
  std::string_view section;
  std::string_view key;
  std::string_view field;  // "" for a section inside a section
};
constexpr StackKey stack_keys[] = {
    {"parallel", "expert_parallel_size", "ranks"},
    {"parallel", "ep_plan", ""},
    {"parallel.ep_plan", "apply_modules", "apply_modules"},
    {"parallel.ep_plan", "dispatcher", "dispatcher"},
    {"parallel.ep_plan", "use_npu_fused_ops", "use_npu_fused_ops"},
    {"model", "model_id", "model"},
    {"model", "use_grouped_expert_matmul", "use_grouped_expert_matmul"},
};

// Our names that other frameworks use for things of their own: outside `case:` they are not mistaken for ours.
constexpr std::string_view common_words[] = {"model", "model_id", "scale", "hidden",  "dtype",      "threads",   "input",
                                             "seed",  "backward", "score", "scaling", "activation", "recompute", "combine"};

bool is_common_word(std::string_view key) { return std::find(std::begin(common_words), std::end(common_words), key) != std::end(common_words); }

// In these every key must be known; the others are shared with other frameworks.
bool is_strict(std::string_view section) { return section == "case" || section == "parallel.ep_plan"; }

std::vector<std::string> keys_of(std::string_view section) {
  if (section.empty()) return {"case", "parallel", "model"};
  if (section == "case") return case_field_names();
  std::vector<std::string> keys;
  for (const StackKey& entry : stack_keys) {
    if (entry.section == section) keys.emplace_back(entry.key);
  }
  return keys;
}

std::string home_of(std::string_view key) {
  for (const StackKey& entry : stack_keys) {
    if (entry.key == key) return std::string(entry.section);
  }
  return find_case_field(key) != nullptr ? "case" : "";
}

const StackKey* find_stack_key(std::string_view section, std::string_view key) {
  for (const StackKey& entry : stack_keys) {
    if (entry.section == section && entry.key == key) return &entry;
  }
  return nullptr;
}

std::string_view kind_of(const YAML::Node& node) {
  if (node.IsMap()) return "a mapping";
  if (node.IsSequence()) return "a list";
  return "empty";
}

class SectionReader {
 public:
  explicit SectionReader(YamlFile file) : file_(std::move(file)) { reading_.faults = file_.faults; }

  SectionReading read() && {
    if (file_.root.IsMap()) read_mapping("", file_.root);
    return std::move(reading_);
  }

 private:
  void fault(const YAML::Node& at, std::string_view text) { reading_.faults.push_back(fmt::format("{}: {}", file_.at(at), text)); }

  // Calls the entry's handler for every key once; a key that comes again is a fault.
  void read_mapping(const std::string& section, const YAML::Node& mapping) {
    std::map<std::string, int> first_line;
    for (const auto& entry : mapping) {
      if (!entry.first.IsScalar()) {
        fault(entry.first, "a key must be a plain word");
        continue;
      }
      std::string key = entry.first.Scalar();
      auto [place, is_new] = first_line.emplace(key, entry.first.Mark().line + 1);
      if (!is_new) {
        fault(entry.first, fmt::format("\"{}\" is given twice; the first time on line {}", key, place->second));
      } else if (section.empty()) {
        read_top_level(key, entry.first, entry.second);
      } else {
        read_key(section, key, entry.first, entry.second);
      }
    }
  }

  void read_top_level(const std::string& key, const YAML::Node& at, const YAML::Node& value) {
    std::vector<std::string> sections = keys_of("");
    if (std::find(sections.begin(), sections.end(), key) != sections.end()) {
      read_section(key, at, value);
      return;
    }
    std::string near = value.IsMap() ? nearest_name(key, sections, 2) : "";
    if (!near.empty()) {
      fault(at, fmt::format("section \"{}\" is unknown; did you mean \"{}\"?", key, near));
    } else if (std::string home = home_of(key); !home.empty() && !is_common_word(key)) {
      fault(at, fmt::format("\"{}\" stands outside its section; it belongs under {}", key, home));
    } else {
      ignore(at, key);
      if (value.IsMap()) find_strays(key, value);
    }
  }

  void read_section(const std::string& section, const YAML::Node& at, const YAML::Node& value) {
    if (value.IsMap()) {
      read_mapping(section, value);
    } else {
      std::string keys = fmt::format("{}", fmt::join(keys_of(section), ", "));
      fault(at, fmt::format("section \"{}\" is {}; it must hold keys: {}", section, value.IsScalar() ? "a single value" : kind_of(value), keys));
    }
  }

  void read_key(const std::string& section, const std::string& key, const YAML::Node& at, const YAML::Node& value) {
    if (section == "case") {
      const CaseField* field = find_case_field(key);
      if (field != nullptr) {
        read_value(*field, key, SettingSource::case_section, at, value);
      } else {
        read_unknown(section, key, at);
      }
      return;
    }
    const StackKey* known = find_stack_key(section, key);
    if (known == nullptr) {
      read_unknown(section, key, at);
    } else if (known->field.empty()) {
      read_section(section + "." + key, at, value);
    } else if (known->field == "model") {
      read_model_id(at, value);
    } else {
      read_value(*find_case_field(known->field), key, SettingSource::stack_section, at, value);
    }
  }

  void read_value(const CaseField& field, const std::string& key, SettingSource source, const YAML::Node& at, const YAML::Node& value) {
    std::string text;
    if (value.IsScalar()) {
      text = value.Scalar();
    } else if (value.IsSequence() && field.is_list()) {
      if (!join_items(field, key, value, text)) return;
    } else {
      std::string allowed = field.choices != nullptr ? join_choices(field.choices()) : std::string(field.allowed);
      fault(at, fmt::format("{} is {}. Allowed: {}.", key, kind_of(value), allowed));
      return;
    }
    if (field.name == "input") text = beside_file(text);
    Case scratch;
    Status status = set_field(field, text, scratch);
    if (status.ok()) {
      reading_.settings.push_back({&field, text, file_.at(at), source});
    } else {
      fault(at, renamed(status.message(), field.name, key));
    }
  }

  bool join_items(const CaseField& field, const std::string& key, const YAML::Node& list, std::string& text) {
    for (const YAML::Node& item : list) {
      if (!item.IsScalar()) {
        fault(item, fmt::format("{} holds an item that is {}; its items are names", key, kind_of(item)));
        return false;
      }
      if (!text.empty()) text += field.separator();
      text += item.Scalar();
    }
    return true;
  }

  void read_model_id(const YAML::Node& at, const YAML::Node& value) {
    if (!value.IsScalar()) {
      fault(at, fmt::format("model_id is {}. Allowed: a name.", kind_of(value)));
      return;
    }
    const std::string& id = value.Scalar();
    std::vector<std::string> known;
    for (const Preset& preset : presets()) {
      if (preset.family == id || preset.name == id) {
        reading_.settings.push_back({find_case_field("model"), preset.name, file_.at(at), SettingSource::stack_section});
        return;
      }
      known.push_back(preset.family);
    }
    if (std::string near = nearest_name(id, known, 2); !near.empty()) {
      fault(at, fmt::format("model_id: \"{}\" has no shape here; did you mean \"{}\"?", id, near));
    } else {
      ignore(at, fmt::format("model.model_id ({} has no preset)", id));
    }
  }

  void read_unknown(const std::string& section, const std::string& key, const YAML::Node& at) {
    std::vector<std::string> own = keys_of(section);
    std::string home = home_of(key);
    bool misplaced = !home.empty() && home != section && (is_strict(section) || !is_common_word(key));
    if (misplaced) {
      fault(at, fmt::format("\"{}\" is not a key of {}; it belongs under {}", key, section, home));
      return;
    }
    if (std::string near = nearest_name(key, own, is_strict(section) ? 3 : 2); !near.empty()) {
      fault(at, fmt::format("\"{}\" is not a key of {}; did you mean \"{}\"?", key, section, near));
    } else if (is_strict(section)) {
      fault(at, fmt::format("\"{}\" is not a key of {}. Allowed: {}.", key, section, join_choices(own)));
    } else {
      ignore(at, section + "." + key);
    }
  }

  // Keys that only Plait and its neighbours in `parallel` and `model` use would be lost in a section that nobody reads here.
  void find_strays(const std::string& section, const YAML::Node& mapping) {
    for (const auto& entry : mapping) {
      if (!entry.first.IsScalar()) continue;
      const std::string& key = entry.first.Scalar();
      for (const StackKey& known : stack_keys) {
        if (known.key == key && !is_common_word(key)) {
          fault(entry.first, fmt::format("\"{}\" stands in section {}; it belongs under {}", key, section, known.section));
        }
      }
    }
  }

  void ignore(const YAML::Node& at, std::string_view key) { reading_.ignored.push_back(fmt::format("{}: {}", file_.at(at), key)); }

  std::string beside_file(const std::string& input) const {
    std::filesystem::path path(input);
    if (input.empty() || path.is_absolute()) return input;
    return (std::filesystem::path(file_.path).parent_path() / path).lexically_normal().string();
  }

  // Messages name the key that the user wrote, not the field behind it.
  static std::string renamed(const std::string& message, std::string_view field, const std::string& key) {
    return key + message.substr(field.size());
  }

  YamlFile file_;
  SectionReading reading_;
};

}  // namespace

SectionReading read_sections(const std::string& path) { return SectionReader(read_yaml(path)).read(); }

}  // namespace plait
