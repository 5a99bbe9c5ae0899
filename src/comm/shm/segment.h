#pragma once
/// Segments of ranks that are processes: anonymous files in memory whose descriptors travel over the mesh of sockets.

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "comm/engine.h"
#include "comm/shm/rendezvous.h"
#include "comm/shm/socket.h"

namespace plait::comm::shm {

/// Where segments come from. `unnamed_file` is for systems without memfd_create.
enum class Backing { memfd, unnamed_file };

/// A file in memory and its mapping here.
struct Memory {
  UniqueFd fd;
  std::shared_ptr<Segment> segment;
};
/// Fresh and reserved: a later write cannot fail. Error: resource_exhausted, with need, limit and where the limit comes from.
Result<Memory> make_memory(int64_t bytes, Backing backing);
/// Memory that another process made.
Result<std::shared_ptr<Segment>> map_memory(int fd, int64_t bytes);

class Store final : public SegmentStore {
 public:
  Store(Backing backing, double timeout_s, std::shared_ptr<const Mesh> mesh) : backing_(backing), timeout_s_(timeout_s), mesh_(std::move(mesh)) {}
  Result<std::shared_ptr<Segment>> create(int64_t bytes) override;
  Status announce(uint32_t segment_idx, const std::shared_ptr<Segment>& segment) override;
  Result<std::shared_ptr<Segment>> map(int peer, uint32_t segment_idx) override;

 private:
  Backing backing_;
  double timeout_s_;
  std::shared_ptr<const Mesh> mesh_;
  std::map<std::byte*, UniqueFd> unannounced_;                            ///< by address; a descriptor is closed once the peers have it
  std::map<std::pair<int, uint32_t>, std::shared_ptr<Segment>> arrived_;  ///< mapped, but asked for later
};

}  // namespace plait::comm::shm
