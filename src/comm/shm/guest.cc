// The rendezvous as the ranks other than 0 see it.

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "comm/deadline.h"
#include "comm/shm/handshake.h"
#include "plait/counters.h"

namespace plait::comm::shm {
namespace {

/// A host that hangs up without a word is one of an older job that is just being killed, or has died: the time to find out which.
constexpr int64_t second_host_ns = 1'500'000'000;
constexpr int longest_pause_ms = 20;
constexpr int64_t slice_ns = 100'000'000;  // between looks at whether the user interrupts
/// Beyond the time-out, for the host to say whom it misses.
constexpr int64_t verdict_ns = 1'000'000'000;

class Guest {
 public:
  explicit Guest(const Meeting& meeting) : meeting_(meeting), deadline_(deadline_after(meeting.timeout_s)) {}

  Result<Mesh> meet() {
    while (true) {
      Status status = connect();
      if (!status.ok()) return status;
      const int error = hear_welcome();
      if (error == 0) break;
      if (error != ECONNRESET) return no_answer(error);
      if (lost_at_ == 0) lost_at_ = now_ns();
    }
    if (Status refused = status_of(welcome_); !refused.ok()) return refused;
    return hear_introductions();
  }

 private:
  Status connect();
  int hear_welcome();
  int receive(std::span<std::byte> message, std::vector<UniqueFd>& descriptors, int64_t deadline) const;
  Status no_answer(int error) const;
  Status lost_host() const;
  Result<Mesh> hear_introductions();

  const Meeting& meeting_;
  int64_t deadline_;
  int64_t lost_at_ = 0;
  UniqueFd host_;
  pid_t host_process_ = 0;
  Welcome welcome_{};
  std::vector<UniqueFd> descriptors_;
};

Status Guest::connect() {
  for (int pause_ms = 1;; pause_ms = std::min(2 * pause_ms, longest_pause_ms)) {
    const int error = connect_name(name_of_listener(meeting_), host_);
    if (error == 0) break;
    if (error != ECONNREFUSED && error != EAGAIN) {
      return Status::unavailable(fmt::format("connect failed: {}", std::system_category().message(error))).in_stage("join");
    }
    if (lost_at_ != 0 && now_ns() > lost_at_ + second_host_ns) return lost_host();
    if (now_ns() > deadline_) return no_answer(ETIMEDOUT);
    if (asked_to_stop(meeting_)) return interrupted(meeting_);
    poll(nullptr, 0, pause_ms);
  }
  const Peer peer = peer_of(host_.get());
  host_process_ = peer.process;
  if (peer.user == getuid()) return {};
  return Status::unavailable(fmt::format("the name of {} is held by user {} (process {}), not by this user {}", describe(meeting_), peer.user,
                                         peer.process, getuid()))
      .at_rank(0)
      .in_stage("join");
}

int Guest::hear_welcome() {
  const int error = send_message(host_.get(), bytes_of(make_hello(meeting_)), {}, deadline_);
  if (error != 0 && error != ECONNRESET) return error;  // a host that hung up may have said why before
  return receive(writable_bytes_of(welcome_), descriptors_, deadline_ + verdict_ns);
}

/// In slices, between which the user may interrupt: EINTR.
int Guest::receive(std::span<std::byte> message, std::vector<UniqueFd>& descriptors, int64_t deadline) const {
  while (true) {
    const int64_t end = std::min(deadline, now_ns() + slice_ns);
    const int error = receive_message(host_.get(), message, descriptors, end);
    if (error != ETIMEDOUT || end == deadline) return error;
    if (asked_to_stop(meeting_)) return EINTR;
  }
}

Status Guest::lost_host() const {
  return Status::peer_lost(fmt::format("rank 0 (process {}) ended while {} formed", host_process_, describe(meeting_))).at_rank(0).in_stage("join");
}

Status Guest::no_answer(int error) const {
  if (error == ECONNRESET) return lost_host();
  if (error == EINTR) return interrupted(meeting_);
  if (error != ETIMEDOUT)
    return Status::unavailable(fmt::format("the rendezvous failed: {}", std::system_category().message(error))).at_rank(0).in_stage("join");
  if (host_) {
    return Status::timeout(fmt::format("not all {} ranks of {} came within {:g} s of rank {}", meeting_.size, describe(meeting_), meeting_.timeout_s,
                                       meeting_.rank))
        .in_stage("join");
  }
  UniqueFd probe;  // connects: a probe that bound the name would hold it for a moment, and the next guest's would find it held
  const int held = connect_name(name_of_group(meeting_), probe);
  const bool taken = held == 0 || held == EAGAIN;
  return Status::timeout(
             fmt::format("rank 0 of {} did not open it within {:g} s of rank {}{}", describe(meeting_), meeting_.timeout_s, meeting_.rank,
                         taken ? ": a complete group of this name runs on this machine; give this job a name of its own (PLAIT_JOB)" : ""))
      .at_rank(0)
      .in_stage("join");
}

Result<Mesh> Guest::hear_introductions() {
  Mesh mesh;
  mesh.sockets.resize(static_cast<size_t>(meeting_.size));
  mesh.processes.resize(static_cast<size_t>(meeting_.size));
  if (descriptors_.empty()) return no_answer(EPROTO);
  mesh.control = std::move(descriptors_[0]);
  if (descriptors_.size() > 1) mesh.processes[0] = std::move(descriptors_[1]);
  for (int i = 0; i < meeting_.size - 2; ++i) {
    Introduction introduction{};
    std::vector<UniqueFd> descriptors;
    const int error = receive(writable_bytes_of(introduction), descriptors, deadline_);
    if (error != 0) return no_answer(error);
    if (introduction.rank < 1 || introduction.rank >= meeting_.size || descriptors.empty()) return no_answer(EPROTO);
    const auto other = static_cast<size_t>(introduction.rank);
    mesh.sockets[other] = std::move(descriptors[0]);
    if (descriptors.size() > 1) mesh.processes[other] = std::move(descriptors[1]);
  }
  mesh.sockets[0] = std::move(host_);
  return mesh;
}

}  // namespace

Result<Mesh> meet_as_guest(const Meeting& meeting) { return Guest(meeting).meet(); }

}  // namespace plait::comm::shm
