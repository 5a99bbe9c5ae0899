#pragma once
/// The rules of a Case, with the fields that each fault concerns, so that a loader can say where their values came from.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plait/config.h"

namespace plait {

struct CaseFault {
  std::vector<std::string_view> fields;  ///< names of case_fields()
  std::string text;
};
std::vector<CaseFault> case_faults(const Case& of);

/// The engines of this build.
std::span<const Engine> available_engines();

/// One message for all: the line itself, or "N faults:" and a line for each.
Status faults_status(const std::vector<std::string>& faults);

}  // namespace plait
