#pragma once
/// Unix sockets of ranks: names without a file, messages that carry descriptors.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plait/status.h"

namespace plait::comm::shm {

/// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

struct Peer {
  pid_t process = 0;
  uid_t user = 0;
};
/// Who is at the other end of a connection.
Peer peer_of(int socket);

/// All functions below return errno values: 0 is success. Sockets keep message boundaries; waits end at `deadline_ns` with ETIMEDOUT.
int bind_name(const std::string& name, UniqueFd& socket);     ///< EADDRINUSE: somebody has the name
int connect_name(const std::string& name, UniqueFd& socket);  ///< ECONNREFUSED: nobody listens
int make_pair(UniqueFd& a, UniqueFd& b);
int send_message(int socket, std::span<const std::byte> message, std::span<const int> descriptors, int64_t deadline_ns);
/// ECONNRESET where the other end is closed, EPROTO where the message has another size, EMFILE where its descriptors find no room.
int receive_message(int socket, std::span<std::byte> message, std::vector<UniqueFd>& descriptors, int64_t deadline_ns);

template <typename T>
std::span<const std::byte> bytes_of(const T& message) {
  return std::as_bytes(std::span(&message, 1));
}
template <typename T>
std::span<std::byte> writable_bytes_of(T& message) {
  return std::as_writable_bytes(std::span(&message, 1));
}

}  // namespace plait::comm::shm
