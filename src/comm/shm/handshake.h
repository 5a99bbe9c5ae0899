#pragma once
/// The messages of the rendezvous, and the names of its sockets.

#include <array>
#include <cstdint>
#include <string>

#include "comm/control.h"
#include "comm/shm/rendezvous.h"
#include "plait/status.h"

namespace plait::comm::shm {

inline constexpr uint64_t protocol_version = 0x504c414954000001;  // "PLAIT", 1: processes of one group must be of one version

/// A guest's first message.
struct Hello {
  uint64_t version;
  int32_t rank;
  int32_t size;
  std::array<char, 128> job;
  std::array<char, 128> group;
};

/// The host's answer: ok with the control block and the host's pidfd, or the reason why there will be no group.
struct Welcome {
  int32_t code;
  int32_t rank;
  std::array<char, 1024> message;
};

/// Ok only: the connection to one other guest, and that guest's pidfd.
struct Introduction {
  int32_t rank;
};

Hello make_hello(const Meeting& meeting);
Welcome make_welcome(const Status& status);
Status status_of(const Welcome& welcome);
/// What is wrong with a guest, apart from others that came before; ok where nothing is.
Status check_hello(const Hello& hello, const Meeting& meeting, pid_t process);

/// Taken by rank 0 for the group's life.
std::string name_of_group(const Meeting& meeting);
/// Taken by rank 0 while the group forms.
std::string name_of_listener(const Meeting& meeting);
/// "group 'ep' of job 'x'", for messages.
std::string describe(const Meeting& meeting);
/// This rank's error where the user interrupts it.
Status interrupted(const Meeting& meeting);

}  // namespace plait::comm::shm
