#pragma once
/// Sleeping on a 32-bit word, and the pause instruction for short spins.

#include <atomic>
#include <cstdint>

namespace plait {

/// Who may sleep on a word: threads of this process, or of any process that maps it.
enum class FutexScope : uint8_t { process, shared };

/// Sleeps while `word` holds `expected`, at most `timeout_ns` (negative: no limit). May return early; callers look at the word again.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns = -1, FutexScope scope = FutexScope::process);
/// Wakes at most `count` sleepers.
void futex_wake(std::atomic<uint32_t>& word, int count, FutexScope scope = FutexScope::process);

/// Tells the CPU that this is a spin loop.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // `yield` is a no-op on most cores; isb waits some 10 ns as pause does
#endif
}

}  // namespace plait
