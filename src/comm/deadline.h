#pragma once

#include <algorithm>
#include <cstdint>

#include "plait/counters.h"

namespace plait::comm {

/// The point of now_ns()'s clock that lies `seconds` ahead.
inline int64_t deadline_after(double seconds) {
  constexpr double longest_s = 1e9;  // keeps the sum with the clock inside 64 bits
  return now_ns() + static_cast<int64_t>(std::clamp(seconds, 0.0, longest_s) * 1e9);
}

}  // namespace plait::comm
