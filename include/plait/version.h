#pragma once

#include <string_view>

namespace plait {

/// The version of the library that is linked, as in "0.1.0".
std::string_view version();

}  // namespace plait
