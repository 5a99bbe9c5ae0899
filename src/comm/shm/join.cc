#include "comm/shm/join.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "base/status_macros.h"
#include "comm/common_group.h"
#include "comm/shm/liveness.h"
#include "comm/shm/rendezvous.h"

namespace plait {
namespace comm::shm {
namespace {

Status check_arguments(const Meeting& meeting) {
  if (meeting.size < 1 || meeting.size > max_ranks || meeting.rank < 0 || meeting.rank >= meeting.size) {
    return Status::invalid_argument(fmt::format("rank {} of {} ranks: sizes are 1 to {}, ranks 0 to size - 1", meeting.rank, meeting.size, max_ranks))
        .in_stage("join");
  }
  if (meeting.job.size() > 120 || meeting.group.size() > 120) {
    return Status::invalid_argument(
               fmt::format("job name of {} bytes and group name of {}: at most 120 each", meeting.job.size(), meeting.group.size()))
        .in_stage("join");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Group>> join(int rank, int size, std::string_view job, std::string_view group_name, const GroupOptions& options,
                                    const JoinSettings& settings) {
  const Meeting meeting{
      rank, size, std::string(job), std::string(group_name), options.timeout_s, settings.name_wait_s, settings.pidfds, options.interrupted};
  PLAIT_RETURN_IF_ERROR(check_arguments(meeting));
  const ControlLayout layout(size, settings.payload_capacity);
  Mesh met;
  std::shared_ptr<Segment> segment;
  if (rank == 0) {
    PLAIT_ASSIGN_OR_RETURN(const Memory memory, make_memory(layout.total_bytes(), settings.backing));
    PLAIT_ASSIGN_OR_RETURN(met, meet_as_host(meeting, memory.fd.get()));
    segment = memory.segment;
  } else {
    PLAIT_ASSIGN_OR_RETURN(met, meet_as_guest(meeting));
    PLAIT_ASSIGN_OR_RETURN(segment, map_memory(met.control.get(), layout.total_bytes()));
    met.control = {};
  }
  const Control control(std::shared_ptr<std::byte>(segment, segment->data()), layout, FutexScope::shared);
  const auto mesh = std::make_shared<const Mesh>(std::move(met));
  Protocol protocol(rank, options, control, std::make_shared<ProcessLiveness>(mesh));
  protocol.introduce(static_cast<int>(getpid()));
  auto store = std::make_unique<Store>(settings.backing, options.timeout_s, mesh);
  auto group = std::make_unique<CommonGroup>(Engine::shm, std::move(protocol), std::move(store));
  PLAIT_RETURN_IF_ERROR(group->barrier("join"));
  group->protocol().decide_spin();
  return std::unique_ptr<Group>(std::move(group));
}

}  // namespace comm::shm

Result<std::unique_ptr<Group>> join_shm_group(int rank, int size, std::string_view job, std::string_view group_name, const GroupOptions& options) {
  return comm::shm::join(rank, size, job, group_name, options, {});
}

}  // namespace plait
