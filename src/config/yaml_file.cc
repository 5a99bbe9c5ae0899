#include "config/yaml_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>

#include <filesystem>

namespace plait {
namespace {

constexpr int64_t max_file_bytes = 4 << 20;  // a settings file; more is a wrong file, or one without end

std::optional<std::string> read_text(const std::string& path, std::vector<std::string>& faults) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    faults.push_back(fmt::format("{}: is a directory; name a YAML file", path));
    return std::nullopt;
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    faults.push_back(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
    return std::nullopt;
  }
  std::string text(static_cast<size_t>(max_file_bytes) + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (static_cast<int64_t>(text.size()) > max_file_bytes) {
    faults.push_back(fmt::format("{}: is larger than {} bytes; a settings file is a few lines", path, max_file_bytes));
    return std::nullopt;
  }
  return text;
}

// YAML forbids tabs as indentation. Each such line is a fault; the tabs become spaces so that the rest of the file can be checked too.
std::string without_tab_indents(const std::string& path, const std::string& text, std::vector<std::string>& faults) {
  std::istringstream lines(text);
  std::string result, line;
  for (int number = 1; std::getline(lines, line); ++number) {
    size_t indent = line.find_first_not_of(" \t");
    size_t tab = line.find('\t');
    if (indent != std::string::npos && tab < indent) {
      faults.push_back(fmt::format("{}:{}: is indented with a tab; YAML allows only spaces", path, number));
      std::string spaces;
      for (size_t i = 0; i < indent; ++i) spaces += line[i] == '\t' ? "  " : " ";
      line = spaces + line.substr(indent);
    }
    result += line + "\n";
  }
  return result;
}

bool parse(const std::string& text, YAML::Node& root, std::string& error, int& line) {
  try {
    root.reset(YAML::Load(text));
    return true;
  } catch (const YAML::Exception& e) {
    error = e.msg;
    line = e.mark.line + 1;
    return false;
  }
}

}  // namespace

std::string YamlFile::at(const YAML::Node& node) const { return fmt::format("{}:{}", path, node.Mark().line + 1); }

YamlFile read_yaml(const std::string& path) {
  YamlFile file{path, YAML::Node(), {}};
  std::optional<std::string> text = read_text(path, file.faults);
  if (!text) return file;
  YAML::Node root;
  std::string error;
  int line = 0;
  bool parsed = parse(*text, root, error, line);
  if (!parsed) {
    std::string repaired = without_tab_indents(path, *text, file.faults);
    bool had_tabs = !file.faults.empty();
    std::string repaired_error;
    parsed = had_tabs && parse(repaired, root, repaired_error, line);
    if (!had_tabs) file.faults.push_back(fmt::format("{}:{}: is not YAML: {}", path, line, error));
  }
  if (!parsed) return file;
  if (root.IsNull()) {
    file.faults.push_back(fmt::format("{}: is empty; it needs a section: case, parallel or model", path));
  } else if (!root.IsMap()) {
    file.faults.push_back(fmt::format("{}:1: must be a mapping with the sections case, parallel or model", path));
  } else {
    file.root.reset(root);
  }
  return file;
}

}  // namespace plait
