#pragma once
/// A group with what one rank computes with, kept alive by everything that holds its memory.

#include <memory>

#include "plait/context.h"
#include "plait/group.h"

namespace plait::python {

/// Members are destroyed in reverse: the group before the context that it counts into.
struct RankGroup {
  std::unique_ptr<Context> context;
  std::unique_ptr<Group> group;
};

}  // namespace plait::python
