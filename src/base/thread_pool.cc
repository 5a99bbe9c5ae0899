#include "base/thread_pool.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <limits>
#include <vector>

#include "base/float_mode.h"
#include "base/futex.h"
#include "base/log.h"
#include "plait/context.h"
#include "plait/counters.h"
#include "plait/env.h"

namespace plait {
namespace {

/// Rises in every forked child, so that a pool knows that its workers stayed behind.
std::atomic<uint32_t> fork_generation = 0;
/// Threads of the pools that are inside parallel_for now: above the usable CPUs nobody spins.
std::atomic<int> running_threads = 0;

void watch_forks() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    fork_generation.fetch_add(1);
    running_threads = 0;
  });
  static_cast<void>(registered);
}

constexpr size_t cache_line = 64;

}  // namespace

/// Everything the workers share. A worker takes a task by lowering `untaken`: a positive old value is a task of the job now open, and
/// that job cannot end before the task is reported in `unfinished`; so `task`, `fn` and `num_tasks` are stable for whoever holds a task,
/// however late it came. Nobody has to wait for a worker that took nothing.
struct ThreadPool::State {
  alignas(cache_line) std::atomic<int64_t> untaken = 0;
  alignas(cache_line) std::atomic<int64_t> unfinished = 0;
  alignas(cache_line) std::atomic<uint32_t> job = 0;       ///< rises with each job; idle workers sleep on it
  alignas(cache_line) std::atomic<uint32_t> finished = 0;  ///< 1 once another thread reported the last task; the caller sleeps on it
  std::atomic<int> idle_sleepers = 0;
  std::atomic<bool> caller_sleeps = false;
  std::atomic<bool> stop = false;
  std::atomic<bool> busy = false;
  Task task = nullptr;
  void* fn = nullptr;
  int64_t num_tasks = 0;

  int threads = 1;
  int cpus = 1;
  int64_t spin_ns = 0;
  uint32_t generation = 0;
  bool started = false;
  std::vector<pthread_t> workers;
  State* next_abandoned = nullptr;

  bool may_spin() const { return threads <= cpus && running_threads.load(std::memory_order_relaxed) <= cpus; }

  /// Waits until `word` differs from `old`: a short spin, then sleep. `sleeps` tells the other side that a wake call is needed.
  template <typename Enter, typename Leave>
  void wait_while(std::atomic<uint32_t>& word, uint32_t old, Enter enter_sleep, Leave leave_sleep) {
    if (spin_ns > 0 && may_spin()) {
      constexpr int pauses_per_look_at_clock = 16;
      for (int64_t end = now_ns() + spin_ns; now_ns() < end;) {
        for (int i = 0; i < pauses_per_look_at_clock; ++i) {
          if (word.load(std::memory_order_acquire) != old) return;
          spin_pause();
        }
      }
    }
    enter_sleep();
    while (word.load(std::memory_order_seq_cst) == old) futex_wait(word, old);
    leave_sleep();
  }

  /// Takes tasks until none is left. True where this thread reported the job's last task.
  bool run_tasks(int worker) {
    FloatMode mode;
    int64_t done = 0;
    for (int64_t left; (left = untaken.fetch_sub(1, std::memory_order_acq_rel)) > 0; ++done) task(fn, num_tasks - left, worker);
    return done > 0 && unfinished.fetch_sub(done, std::memory_order_acq_rel) == done;
  }

  void work(int worker) {
    uint32_t seen = 0;
    while (true) {
      wait_while(
          job, seen, [this] { idle_sleepers.fetch_add(1, std::memory_order_seq_cst); },
          [this] { idle_sleepers.fetch_sub(1, std::memory_order_relaxed); });
      if (stop.load(std::memory_order_acquire)) return;
      seen = job.load(std::memory_order_acquire);
      if (!run_tasks(worker)) continue;
      finished.store(1, std::memory_order_seq_cst);
      if (caller_sleeps.load(std::memory_order_seq_cst)) futex_wake(finished, 1);
    }
  }

  struct Start {
    State* state;
    int worker;
  };

  void start_workers();
  void announce(int num_wanted) {
    job.fetch_add(1, std::memory_order_seq_cst);
    if (idle_sleepers.load(std::memory_order_seq_cst) > 0) futex_wake(job, num_wanted);
  }
  void run(int64_t count, Task the_task, void* the_fn);

  static std::unique_ptr<State> make(int threads);
  static void abandon(std::unique_ptr<State> state);
};

std::unique_ptr<ThreadPool::State> ThreadPool::State::make(int threads) {
  watch_forks();
  auto state = std::make_unique<State>();
  Result<Env> env = Env::read();  // a malformed environment is reported by Context::create; here the default serves
  state->threads = threads;
  state->cpus = usable_cpus();
  state->spin_ns = 1000LL * (env.ok() ? env->spin_us : Env{}.spin_us);
  state->generation = fork_generation.load();
  return state;
}

/// Takes a state whose workers live in the parent process: it can be neither joined nor freed; the list keeps it reachable.
void ThreadPool::State::abandon(std::unique_ptr<State> state) {
  static std::atomic<State*> head = nullptr;
  State* raw = state.release();
  raw->next_abandoned = head.load();
  while (!head.compare_exchange_weak(raw->next_abandoned, raw)) {
  }
}

void ThreadPool::State::start_workers() {
  started = true;
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
  for (int worker = 1; worker < threads; ++worker) {
    pthread_t thread{};
    auto* start = new Start{this, worker};
    auto body = [](void* argument) -> void* {
      auto [state, index] = *static_cast<Start*>(argument);
      delete static_cast<Start*>(argument);
      state->work(index);
      return nullptr;
    };
    if (pthread_create(&thread, nullptr, body, start) != 0) {
      delete start;
      log(LogLevel::warning, "the system refuses more threads; the work goes on with fewer");
      break;
    }
    pthread_setname_np(thread, "plait-worker");
    workers.push_back(thread);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void ThreadPool::State::run(int64_t count, Task the_task, void* the_fn) {
  if (!started) start_workers();
  running_threads.fetch_add(threads, std::memory_order_relaxed);
  task = the_task;
  fn = the_fn;
  num_tasks = count;
  finished.store(0, std::memory_order_relaxed);
  unfinished.store(count, std::memory_order_relaxed);
  untaken.store(count, std::memory_order_release);
  announce(static_cast<int>(std::min<int64_t>(count - 1, static_cast<int64_t>(workers.size()))));
  if (!run_tasks(0)) {
    wait_while(
        finished, 0, [this] { caller_sleeps.store(true, std::memory_order_seq_cst); },
        [this] { caller_sleeps.store(false, std::memory_order_relaxed); });
  }
  running_threads.fetch_sub(threads, std::memory_order_relaxed);
}

ThreadPool::ThreadPool(int threads) : threads_(std::max(threads, 1)), state_(State::make(threads_)) {}

ThreadPool::~ThreadPool() {
  if (state_->generation != fork_generation.load()) {
    State::abandon(std::move(state_));
    return;
  }
  state_->stop.store(true, std::memory_order_release);
  state_->announce(std::numeric_limits<int>::max());
  for (pthread_t worker : state_->workers) pthread_join(worker, nullptr);
}

void ThreadPool::run(int64_t num_tasks, Task task, void* fn) {
  if (num_tasks <= 0) return;
  if (state_->generation != fork_generation.load(std::memory_order_relaxed)) {
    State::abandon(std::move(state_));
    state_ = State::make(threads_);
  }
  [[maybe_unused]] bool was_busy = state_->busy.exchange(true);
  assert(!was_busy && "one parallel_for at a time per pool");
  if (threads_ == 1 || num_tasks == 1) {
    FloatMode mode;
    for (int64_t i = 0; i < num_tasks; ++i) task(fn, i, 0);
  } else {
    state_->run(num_tasks, task, fn);
  }
  state_->busy.store(false);
}

}  // namespace plait
