#pragma once
/// A YAML file as a tree with line numbers. All that the file itself can have wrong is gathered, nothing is thrown.

#include <yaml-cpp/yaml.h>

#include <string>
#include <vector>

namespace plait {

struct YamlFile {
  std::string path;
  YAML::Node root;                  ///< a mapping, or undefined where the file could not be read as one
  std::vector<std::string> faults;  ///< "file:line: ..."

  std::string at(const YAML::Node& node) const;  ///< "file:line"
};
YamlFile read_yaml(const std::string& path);

}  // namespace plait
