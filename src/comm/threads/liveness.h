#pragma once
/// Ranks that are threads do not die alone: a rank that stops calling ends its Group, which the protocol notices.

#include "comm/engine.h"

namespace plait::comm::threads {

class ThreadLiveness final : public Liveness {
 public:
  std::vector<int> find_dead() override { return {}; }
};

}  // namespace plait::comm::threads
