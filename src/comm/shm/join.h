#pragma once
/// join_shm_group with the settings that tests change.

#include <memory>
#include <string_view>

#include "comm/control.h"
#include "comm/shm/segment.h"
#include "plait/group.h"

namespace plait::comm::shm {

struct JoinSettings {
  Backing backing = Backing::memfd;
  double name_wait_s = 3;  ///< these two: see Meeting
  bool pidfds = true;
  int64_t payload_capacity = default_payload_capacity;
};

Result<std::unique_ptr<Group>> join(int rank, int size, std::string_view job, std::string_view group_name, const GroupOptions& options,
                                    const JoinSettings& settings);

}  // namespace plait::comm::shm
