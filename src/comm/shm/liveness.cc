#include "comm/shm/liveness.h"

#include <poll.h>

namespace plait::comm::shm {

std::vector<int> ProcessLiveness::find_dead() {
  std::vector<pollfd> items;
  for (const UniqueFd& socket : mesh_->sockets) items.push_back({socket.get(), POLLRDHUP, 0});
  for (const UniqueFd& process : mesh_->processes) items.push_back({process.get(), POLLIN, 0});
  std::vector<int> dead;
  if (poll(items.data(), items.size(), 0) <= 0) return dead;  // descriptors of -1 are passed over
  const size_t size = mesh_->sockets.size();
  for (size_t rank = 0; rank < size; ++rank) {
    const bool hung_up = (items[rank].revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
    if (hung_up || items[size + rank].revents != 0) dead.push_back(static_cast<int>(rank));
  }
  return dead;
}

}  // namespace plait::comm::shm
