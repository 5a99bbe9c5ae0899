#include "base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

namespace plait {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);

void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns, FutexScope scope) {
  timespec timeout{static_cast<time_t>(timeout_ns / 1'000'000'000), static_cast<long>(timeout_ns % 1'000'000'000)};
  int operation = FUTEX_WAIT | (scope == FutexScope::process ? FUTEX_PRIVATE_FLAG : 0);
  syscall(SYS_futex, &word, operation, expected, timeout_ns < 0 ? nullptr : &timeout, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word, int count, FutexScope scope) {
  int operation = FUTEX_WAKE | (scope == FutexScope::process ? FUTEX_PRIVATE_FLAG : 0);
  syscall(SYS_futex, &word, operation, count, nullptr, nullptr, 0);
}

}  // namespace plait
