#pragma once
/// make_thread_groups with the settings that tests change.

#include <cstdint>
#include <memory>
#include <vector>

#include "plait/group.h"

namespace plait::comm::threads {

Result<std::vector<std::unique_ptr<Group>>> make_groups(int size, const GroupOptions& options, int64_t payload_capacity);

}  // namespace plait::comm::threads
