#include "comm/shm/socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "plait/counters.h"

namespace plait::comm::shm {
namespace {

constexpr int socket_type = SOCK_SEQPACKET | SOCK_CLOEXEC;
constexpr size_t max_descriptors = 4;

/// An abstract address: its first byte is zero, it names no file and ends with its socket.
socklen_t make_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

int poll_until(int socket, short events, int64_t deadline_ns) {
  while (true) {
    const int64_t left_ns = deadline_ns - now_ns();
    pollfd poll_item{socket, events, 0};
    const int ready = poll(&poll_item, 1, static_cast<int>(std::clamp<int64_t>((left_ns + 999'999) / 1'000'000, 0, 1000)));
    if (ready > 0) return 0;
    if (ready < 0 && errno != EINTR) return errno;
    if (left_ns <= 0) return ETIMEDOUT;
  }
}

union ControlBuffer {
  cmsghdr header;
  std::array<char, CMSG_SPACE(max_descriptors * sizeof(int))> bytes;
};

}  // namespace

void UniqueFd::reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

Peer peer_of(int socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return {0, static_cast<uid_t>(-1)};
  return {credentials.pid, credentials.uid};
}

int bind_name(const std::string& name, UniqueFd& socket) {
  UniqueFd fresh(::socket(AF_UNIX, socket_type, 0));
  sockaddr_un address;
  const socklen_t length = make_address(name, address);
  if (!fresh || bind(fresh.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return errno;
  socket = std::move(fresh);
  return 0;
}

int connect_name(const std::string& name, UniqueFd& socket) {
  UniqueFd fresh(::socket(AF_UNIX, socket_type | SOCK_NONBLOCK, 0));
  sockaddr_un address;
  const socklen_t length = make_address(name, address);
  if (!fresh || connect(fresh.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return errno;
  socket = std::move(fresh);
  return 0;
}

int make_pair(UniqueFd& a, UniqueFd& b) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, socket_type | SOCK_NONBLOCK, 0, ends.data()) != 0) return errno;
  a = UniqueFd(ends[0]);
  b = UniqueFd(ends[1]);
  return 0;
}

int send_message(int socket, std::span<const std::byte> message, std::span<const int> descriptors, int64_t deadline_ns) {
  iovec part{const_cast<std::byte*>(message.data()), message.size()};
  ControlBuffer control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!descriptors.empty()) {
    header.msg_control = &control;
    header.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(item), descriptors.data(), descriptors.size_bytes());
  }
  while (sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    const int error = errno;
    if (error == EINTR) continue;
    if (now_ns() > deadline_ns) return ETIMEDOUT;
    if (error == ETOOMANYREFS) {  // the receivers have not yet taken the descriptors sent before
      poll(nullptr, 0, 1);
    } else if (error == EAGAIN) {
      if (const int waited = poll_until(socket, POLLOUT, deadline_ns); waited != 0) return waited;
    } else {
      return error == EPIPE ? ECONNRESET : error;
    }
  }
  return 0;
}

int receive_message(int socket, std::span<std::byte> message, std::vector<UniqueFd>& descriptors, int64_t deadline_ns) {
  iovec part{message.data(), message.size()};
  ControlBuffer control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = &control;
  header.msg_controllen = sizeof(control);
  ssize_t length = 0;
  bool reset = false;
  while ((length = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT)) < 0) {
    if (errno == EINTR) continue;
    if (errno == ECONNRESET && !reset) {  // the peer ended without reading all of ours; what it sent before is still here and comes next
      reset = true;
      continue;
    }
    if (errno != EAGAIN) return errno;
    if (const int waited = poll_until(socket, POLLIN, deadline_ns); waited != 0) return waited;
  }
  descriptors.clear();
  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    for (size_t i = 0; i < (item->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof(int));
      descriptors.emplace_back(fd);
    }
  }
  if (length == 0) return ECONNRESET;
  if ((header.msg_flags & MSG_CTRUNC) != 0) return EMFILE;
  if (static_cast<size_t>(length) != message.size() || (header.msg_flags & MSG_TRUNC) != 0) return EPROTO;
  return 0;
}

}  // namespace plait::comm::shm
