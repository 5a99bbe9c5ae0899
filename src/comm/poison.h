#pragma once
/// Marks freed window memory for the address sanitizer; nothing without it.

#include <cstddef>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#define PLAIT_COMM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PLAIT_COMM_ASAN 1
#endif
#endif
#ifdef PLAIT_COMM_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace plait::comm {

inline void poison([[maybe_unused]] const std::byte* data, [[maybe_unused]] int64_t bytes) {
#ifdef PLAIT_COMM_ASAN
  ASAN_POISON_MEMORY_REGION(data, static_cast<size_t>(bytes));
#endif
}
inline void unpoison([[maybe_unused]] const std::byte* data, [[maybe_unused]] int64_t bytes) {
#ifdef PLAIT_COMM_ASAN
  ASAN_UNPOISON_MEMORY_REGION(data, static_cast<size_t>(bytes));
#endif
}

}  // namespace plait::comm
