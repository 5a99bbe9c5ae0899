#pragma once
/// The death of processes: their end of the mesh closes, their pidfd becomes readable. Both are looked at, because a child that a rank has
/// forked may keep the sockets open, and pidfds are not everywhere.

#include <memory>
#include <vector>

#include "comm/engine.h"
#include "comm/shm/rendezvous.h"

namespace plait::comm::shm {

class ProcessLiveness final : public Liveness {
 public:
  explicit ProcessLiveness(std::shared_ptr<const Mesh> mesh) : mesh_(std::move(mesh)) {}
  std::vector<int> find_dead() override;

 private:
  std::shared_ptr<const Mesh> mesh_;
};

}  // namespace plait::comm::shm
