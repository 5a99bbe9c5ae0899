#include "comm/shm/handshake.h"

#include <fmt/format.h>
#include <unistd.h>

#include <string_view>

namespace plait::comm::shm {
namespace {

uint64_t hash(std::string_view text, uint64_t seed) {
  uint64_t value = seed;
  for (char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3;  // FNV-1a
  return value;
}

/// Job and group names of any length and content, in the 107 bytes that a socket name may have.
std::string base_name(const Meeting& meeting) {
  const std::string both = fmt::format("{}/{}/{}", meeting.job.size(), meeting.job, meeting.group);
  return fmt::format("plait/{}/{:016x}{:016x}", getuid(), hash(both, 0xcbf29ce484222325), hash(both, 0x9e3779b97f4a7c15));
}

}  // namespace

Hello make_hello(const Meeting& meeting) {
  Hello hello{};
  hello.version = protocol_version;
  hello.rank = meeting.rank;
  hello.size = meeting.size;
  set_text(hello.job, meeting.job);
  set_text(hello.group, meeting.group);
  return hello;
}

Welcome make_welcome(const Status& status) {
  Welcome welcome{};
  welcome.code = static_cast<int32_t>(status.code());
  welcome.rank = status.rank();
  set_text(welcome.message, status.message());
  return welcome;
}

Status status_of(const Welcome& welcome) {
  if (welcome.code == static_cast<int32_t>(StatusCode::ok)) return {};
  return Status(static_cast<StatusCode>(welcome.code), std::string(text(welcome.message))).at_rank(welcome.rank).in_stage("join");
}

Status check_hello(const Hello& hello, const Meeting& meeting, pid_t process) {
  const Hello own = make_hello(meeting);
  if (hello.version != protocol_version) {
    return Status::invalid_argument(fmt::format("process {} speaks protocol {:x} and rank 0 {:x}: all processes must use the same version of Plait",
                                                process, hello.version, protocol_version));
  }
  if (text(hello.job) != text(own.job) || text(hello.group) != text(own.group)) {
    return Status::invalid_argument(fmt::format("process {} wants group '{}' of job '{}', rank 0 opened {}: choose other names", process,
                                                text(hello.group), text(hello.job), describe(meeting)));
  }
  if (hello.size != meeting.size) {
    return Status::invalid_argument(fmt::format("rank {} (process {}) says that {} has {} ranks, rank 0 says {}: sizes must agree", hello.rank,
                                                process, describe(meeting), hello.size, meeting.size))
        .at_rank(hello.rank);
  }
  if (hello.rank < 1 || hello.rank >= meeting.size) {
    return Status::invalid_argument(
               fmt::format("process {} says it is rank {} of {}, which has ranks 0 to {}", process, hello.rank, describe(meeting), meeting.size - 1))
        .at_rank(hello.rank);
  }
  return {};
}

std::string name_of_group(const Meeting& meeting) { return base_name(meeting); }
std::string name_of_listener(const Meeting& meeting) { return base_name(meeting) + "/join"; }
std::string describe(const Meeting& meeting) { return fmt::format("group '{}' of job '{}'", meeting.group, meeting.job); }

Status interrupted(const Meeting& meeting) {
  return Status::interrupted(fmt::format("rank {} was interrupted while {} formed", meeting.rank, describe(meeting)))
      .at_rank(meeting.rank)
      .in_stage("join");
}

}  // namespace plait::comm::shm
