#pragma once
/// How the processes of a group find each other: rank 0 listens under an abstract name, checks who comes, and hands every pair of ranks a
/// private connection. Nothing of it lies in a file system. docs/design/0003-groups.md, "Rendezvous".

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/shm/socket.h"
#include "plait/status.h"

namespace plait::comm::shm {

struct Meeting {
  int rank = 0;
  int size = 1;
  std::string job;
  std::string group;
  double timeout_s = 60;
  double name_wait_s = 3;                  ///< how long rank 0 waits for the name to become free: a killed job's end takes a moment
  bool pidfds = true;                      ///< false: as on systems without them
  std::function<bool()> interrupted = {};  ///< as in GroupOptions
};

/// What a rank has when all have met. Indexed by rank; nothing at its own place.
struct Mesh {
  std::vector<UniqueFd> sockets;
  std::vector<UniqueFd> processes;  ///< pidfds, where the system has them
  UniqueFd control;                 ///< guests: the control block's memory
  UniqueFd name;                    ///< rank 0: keeps the name taken while the group lives
};

/// What ends a meeting whose wait the user interrupts.
inline bool asked_to_stop(const Meeting& meeting) { return meeting.interrupted && meeting.interrupted(); }

/// Rank 0. `control` is the descriptor that all guests get.
Result<Mesh> meet_as_host(const Meeting& meeting, int control);
/// The other ranks.
Result<Mesh> meet_as_guest(const Meeting& meeting);

}  // namespace plait::comm::shm
