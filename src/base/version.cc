#include "plait/version.h"

namespace plait {

// The build defines PLAIT_VERSION from the file VERSION.
std::string_view version() { return PLAIT_VERSION; }

}  // namespace plait
