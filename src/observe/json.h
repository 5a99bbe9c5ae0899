#pragma once
/// Parts of the JSON that several reports share.

#include <nlohmann/json_fwd.hpp>

#include "plait/config.h"

namespace plait {

/// Every value of the case under its name: the same names as options and YAML keys.
nlohmann::ordered_json to_json(const Case& run_case);

}  // namespace plait
