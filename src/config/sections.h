#pragma once
/// Which keys of a YAML file Plait reads, under which section, and what it says about the others.

#include <string>
#include <vector>

#include "config/case_builder.h"

namespace plait {

struct SectionReading {
  std::vector<Setting> settings;
  std::vector<std::string> faults;
  std::vector<std::string> ignored;
};
SectionReading read_sections(const std::string& path);

}  // namespace plait
