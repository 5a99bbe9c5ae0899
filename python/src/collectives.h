#pragma once
/// What modules need of a group beside the operators: small facts and whole parameters from all ranks.

#include <string>
#include <vector>

#include "plait/group.h"

namespace plait::python {

/// Every rank's payload, in rank order. Sizes are equal.
Result<std::vector<std::string>> exchange_bytes(Group& group, const std::string& stage, const std::string& payload);

/// Every rank's `bytes` bytes, rank after rank, into `out` (R * bytes) of those ranks that give one; null elsewhere. In pieces, so that
/// the window stays small.
Status gather_bytes(Group& group, const std::string& stage, const std::byte* own, int64_t bytes, std::byte* out);

}  // namespace plait::python
