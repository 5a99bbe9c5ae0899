#pragma once
/// Plain values of every rank, on every rank.

#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/status_macros.h"
#include "plait/group.h"

namespace plait {

/// values of rank 0, then those of rank 1, ...; the same number on all ranks. Collective.
template <typename T>
Result<std::vector<T>> gather(Group& group, std::string_view stage, std::span<const T> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  PLAIT_ASSIGN_OR_RETURN(Exchange all, group.exchange(stage, std::as_bytes(values)));
  std::vector<T> result(values.size() * static_cast<size_t>(group.size()));
  if (!result.empty()) std::memcpy(result.data(), all.payloads.data(), result.size() * sizeof(T));
  return result;
}

template <typename T>
Result<std::vector<T>> gather_one(Group& group, std::string_view stage, const T& value) {
  return gather(group, stage, std::span<const T>(&value, 1));
}

/// True where any rank's `flag` is. Collective.
inline Result<bool> any_rank(Group& group, std::string_view stage, bool flag) {
  PLAIT_ASSIGN_OR_RETURN(std::vector<uint8_t> flags, gather_one(group, stage, static_cast<uint8_t>(flag)));
  for (uint8_t f : flags) {
    if (f != 0) return true;
  }
  return false;
}

}  // namespace plait
