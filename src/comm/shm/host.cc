// The rendezvous as rank 0 sees it.

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/status_macros.h"
#include "comm/deadline.h"
#include "comm/shm/handshake.h"
#include "plait/counters.h"

namespace plait::comm::shm {
namespace {

constexpr int64_t linger_ns = 2'000'000'000;  // after a failed start: time for ranks that are still on their way to learn why
constexpr int64_t second_ns = 1'000'000'000;
constexpr int64_t longest_poll_ms = 100;  // between looks at whether the user interrupts

/// A connection that was accepted; rank -1 until it has said who it is.
struct Guest {
  UniqueFd socket;
  pid_t process = 0;
  int rank = -1;
};

class Host {
 public:
  explicit Host(const Meeting& meeting) : meeting_(meeting), deadline_(deadline_after(meeting.timeout_s)) {}

  Result<Mesh> meet(int control) {
    PLAIT_RETURN_IF_ERROR(open());
    Status status;
    while (status.ok() && num_present_ + 1 < meeting_.size) status = step(deadline_);
    if (status.ok()) {
      listener_.reset();  // whoever comes now is a stranger
      std::erase_if(guests_, [](const Guest& guest) { return guest.rank < 0; });
      std::sort(guests_.begin(), guests_.end(), [](const Guest& a, const Guest& b) { return a.rank < b.rank; });
      return introduce(control);
    }
    if (status.code() == StatusCode::interrupted) {  // to the others it is a rank that stopped
      tell_all(Status::aborted(status.message()).at_rank(0).in_stage("join"));
    } else {
      tell_all(status);
    }
    return status;
  }

 private:
  Status open();
  Status take_name(const std::string& name, UniqueFd& socket, int64_t deadline);
  /// Waits for something to happen, at most until `deadline`, and handles it. Error: the group cannot form.
  Status step(int64_t deadline);
  Status accept_guest();
  Status hear(Guest& guest);
  std::vector<int> missing_ranks() const;
  Status missing() const;
  void tell_all(const Status& status);
  UniqueFd open_process(pid_t process) const;
  Result<Mesh> introduce(int control);

  const Meeting& meeting_;
  int64_t deadline_;
  UniqueFd name_;
  UniqueFd listener_;
  std::vector<Guest> guests_;
  int num_present_ = 0;
};

Status failed_call(const char* call, int error) {
  return Status::unavailable(fmt::format("{} failed: {}", call, std::system_category().message(error))).in_stage("join");
}

/// A killed job's name is free as soon as its processes have ended, which may take a moment.
Status Host::take_name(const std::string& name, UniqueFd& socket, int64_t deadline) {
  int error = 0;
  while ((error = bind_name(name, socket)) == EADDRINUSE && now_ns() < deadline) poll(nullptr, 0, 5);
  if (error == EADDRINUSE) {
    return Status::unavailable(
               fmt::format("{} exists on this machine already: another job of this name runs, or two processes call themselves rank 0; "
                           "give this job a name of its own (PLAIT_JOB)",
                           describe(meeting_)))
        .at_rank(0)
        .in_stage("join");
  }
  return error == 0 ? Status() : failed_call("bind", error);
}

Status Host::open() {
  const int64_t deadline = std::min(deadline_, deadline_after(meeting_.name_wait_s));
  PLAIT_RETURN_IF_ERROR(take_name(name_of_group(meeting_), name_, deadline));
  if (listen(name_.get(), 1) != 0) return failed_call("listen", errno);  // for guests that ask whether the name is held
  if (meeting_.size == 1) return {};
  PLAIT_RETURN_IF_ERROR(take_name(name_of_listener(meeting_), listener_, deadline));
  if (listen(listener_.get(), meeting_.size) != 0) return failed_call("listen", errno);
  return {};
}

Status Host::step(int64_t deadline) {
  const int64_t left_ns = deadline - now_ns();
  if (left_ns <= 0) return missing();
  if (asked_to_stop(meeting_)) return interrupted(meeting_);
  std::vector<pollfd> items = {{listener_.get(), POLLIN, 0}};
  for (const Guest& guest : guests_) items.push_back({guest.socket.get(), POLLIN, 0});
  poll(items.data(), items.size(), static_cast<int>(std::clamp<int64_t>(left_ns / 1'000'000, 1, longest_poll_ms)));
  for (size_t i = guests_.size(); i-- > 0;) {  // backwards: a stranger's place is filled by the last
    if (items[i + 1].revents == 0) continue;
    PLAIT_RETURN_IF_ERROR(hear(guests_[i]));
    if (!guests_[i].socket) {
      std::swap(guests_[i], guests_.back());
      guests_.pop_back();
    }
  }
  return items[0].revents != 0 ? accept_guest() : Status();
}

Status Host::accept_guest() {
  UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) return errno == EMFILE || errno == ENFILE || errno == ENOMEM ? failed_call("accept", errno) : Status();  // else: gone again
  const Peer peer = peer_of(socket.get());
  if (peer.user == getuid()) guests_.push_back({std::move(socket), peer.process, -1});  // a stranger gets nothing
  return {};
}

Status Host::hear(Guest& guest) {
  Hello hello{};
  std::vector<UniqueFd> descriptors;
  const int error = receive_message(guest.socket.get(), writable_bytes_of(hello), descriptors, 0);
  if (error == ETIMEDOUT) return {};
  if (guest.rank >= 0) {
    return Status::peer_lost(fmt::format("rank {} (process {}) ended while {} formed", guest.rank, guest.process, describe(meeting_)))
        .at_rank(guest.rank)
        .in_stage("join");
  }
  if (error != 0) {  // gone before it said a word, or no rank at all
    guest.socket.reset();
    return {};
  }
  const auto twin = std::find_if(guests_.begin(), guests_.end(), [&](const Guest& other) { return other.rank == hello.rank; });
  const bool first = twin == guests_.end();
  guest.rank = hello.rank;
  Status status = check_hello(hello, meeting_, guest.process);
  if (!status.ok()) return std::move(status).in_stage("join");
  if (!first) {
    return Status::invalid_argument(
               fmt::format("processes {} and {} both say that they are rank {} of {}", twin->process, guest.process, hello.rank, describe(meeting_)))
        .at_rank(hello.rank)
        .in_stage("join");
  }
  ++num_present_;
  return {};
}

std::vector<int> Host::missing_ranks() const {
  std::vector<int> ranks;
  for (int rank = 1; rank < meeting_.size; ++rank) {
    if (std::none_of(guests_.begin(), guests_.end(), [&](const Guest& guest) { return guest.rank == rank; })) ranks.push_back(rank);
  }
  return ranks;
}

Status Host::missing() const {
  const std::vector<int> ranks = missing_ranks();
  return Status::timeout(fmt::format("{} {} of {} did not come within {:g} s", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "),
                                     describe(meeting_), meeting_.timeout_s))
      .at_rank(ranks.front())
      .in_stage("join");
}

/// Every rank that is there, and those that come in the next moments, learn why there is no group.
void Host::tell_all(const Status& status) {
  const Welcome refusal = make_welcome(status);
  const bool linger = status.code() != StatusCode::timeout && status.code() != StatusCode::aborted;
  const int64_t end = linger ? std::min(deadline_, now_ns() + linger_ns) : 0;
  auto num_missing = static_cast<int64_t>(missing_ranks().size());
  do {
    for (Guest& guest : guests_) {
      const int error = send_message(guest.socket.get(), bytes_of(refusal), {}, now_ns() + second_ns);
      if (error == 0 && guest.rank < 0) --num_missing;
    }
    guests_.clear();
    if (num_missing <= 0 || now_ns() >= end) break;
    pollfd item{listener_.get(), POLLIN, 0};
    if (poll(&item, 1, 20) > 0 && !accept_guest().ok()) break;
  } while (true);
}

/// Nothing for a process outside this pid namespace, and on kernels before 5.3.
UniqueFd Host::open_process(pid_t process) const {
  return UniqueFd(meeting_.pidfds && process > 0 ? static_cast<int>(syscall(SYS_pidfd_open, process, 0)) : -1);
}

/// Sends `message` with the descriptors that are there.
template <typename Message>
int send_with(int socket, const Message& message, int first, int second, int64_t deadline) {
  std::array<int, 2> descriptors = {first, second};
  return send_message(socket, bytes_of(message), std::span(descriptors).first(second >= 0 ? 2 : 1), deadline);
}

Result<Mesh> Host::introduce(int control) {
  Mesh mesh;
  mesh.sockets.resize(static_cast<size_t>(meeting_.size));
  mesh.processes.resize(static_cast<size_t>(meeting_.size));
  const UniqueFd self = open_process(getpid());
  auto lost = [&](const Guest& guest, int error) {
    return Status::peer_lost(fmt::format("rank {} (process {}) cannot be reached while {} forms: {}", guest.rank, guest.process, describe(meeting_),
                                         std::system_category().message(error)))
        .at_rank(guest.rank)
        .in_stage("join");
  };
  for (Guest& guest : guests_) {
    mesh.processes[static_cast<size_t>(guest.rank)] = open_process(guest.process);
    const int error = send_with(guest.socket.get(), make_welcome({}), control, self.get(), deadline_);
    if (error != 0) return lost(guest, error);
  }
  for (size_t i = 0; i < guests_.size(); ++i) {
    for (size_t j = i + 1; j < guests_.size(); ++j) {
      const std::array<const Guest*, 2> both = {&guests_[i], &guests_[j]};
      std::array<UniqueFd, 2> ends;
      if (const int error = make_pair(ends[0], ends[1]); error != 0) return failed_call("socketpair", error);
      for (size_t side = 0; side < 2; ++side) {
        const Guest& other = *both[1 - side];
        const int pidfd = mesh.processes[static_cast<size_t>(other.rank)].get();
        const int error = send_with(both[side]->socket.get(), Introduction{other.rank}, ends[side].get(), pidfd, deadline_);
        if (error != 0) return lost(*both[side], error);
      }
    }
  }
  for (Guest& guest : guests_) mesh.sockets[static_cast<size_t>(guest.rank)] = std::move(guest.socket);
  mesh.name = std::move(name_);
  return mesh;
}

}  // namespace

Result<Mesh> meet_as_host(const Meeting& meeting, int control) { return Host(meeting).meet(control); }

}  // namespace plait::comm::shm
