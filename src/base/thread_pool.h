#pragma once
/// A pool of own threads. parallel_for spreads tasks over the workers and the caller; waiting is a short spin, then a futex sleep.

#include <cstdint>
#include <memory>
#include <type_traits>

#include "plait/status.h"

namespace plait {

class ThreadPool {
 public:
  /// `threads` >= 1, the caller included; threads - 1 workers start lazily with the first parallel_for that needs them.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  /// Calls fn(task, worker) for every task in [0, num_tasks); worker in [0, threads()) identifies the executing thread (0 = caller).
  /// Tasks are handed out in ascending order. Returns when all are done. Denormals are flushed (base/float_mode.h) while tasks run,
  /// in the caller too, whose own mode is restored. Only one parallel_for at a time per pool; not reentrant.
  /// After a fork the child starts fresh workers with its first call.
  template <typename Fn>
  void parallel_for(int64_t num_tasks, Fn&& fn) {
    run(
        num_tasks, [](void* f, int64_t task, int worker) { (*static_cast<std::remove_reference_t<Fn>*>(f))(task, worker); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using Task = void (*)(void* fn, int64_t task, int worker);
  void run(int64_t num_tasks, Task task, void* fn);

  struct State;
  int threads_;
  std::unique_ptr<State> state_;
};

}  // namespace plait
