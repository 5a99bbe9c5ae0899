#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "plait/context.h"

namespace plait {
namespace {

TEST(ThreadPool, RunsEveryTaskOnceWhateverTheThreads) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (int64_t num_tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(num_tasks));
      std::atomic<bool> workers_valid = true;
      pool.parallel_for(num_tasks, [&](int64_t task, int worker) {
        calls[static_cast<size_t>(task)].fetch_add(1);
        if (worker < 0 || worker >= threads) workers_valid = false;
      });
      for (const auto& count : calls) EXPECT_EQ(count.load(), 1);
      EXPECT_TRUE(workers_valid);
    }
  }
}

// Jobs without a pause between them, of changing size: a worker that comes late to one job must find the next one intact.
TEST(ThreadPool, ManySmallJobsBackToBack) {
  ThreadPool pool(4);
  std::vector<int64_t> plain(64);  // written without atomics: the sanitizer sees a missing happens-before edge
  int64_t expected = 0;
  for (int round = 0; round < 20000; ++round) {
    int64_t num_tasks = 1 + round % 5;
    pool.parallel_for(num_tasks, [&](int64_t task, int) { plain[static_cast<size_t>(task)] += round; });
    expected += num_tasks * round;
  }
  EXPECT_EQ(std::accumulate(plain.begin(), plain.end(), int64_t{0}), expected);
}

TEST(ThreadPool, HandsTasksOutInAscendingOrder) {
  for (int threads : {1, 4}) {
    ThreadPool pool(threads);
    std::vector<std::vector<int64_t>> seen(static_cast<size_t>(threads));
    pool.parallel_for(2000, [&](int64_t task, int worker) { seen[static_cast<size_t>(worker)].push_back(task); });
    for (const auto& tasks : seen) EXPECT_TRUE(std::is_sorted(tasks.begin(), tasks.end()));
  }
}

// A task that waits for a later one hangs unless another thread takes it: workers really run beside the caller.
TEST(ThreadPool, TasksRunAtTheSameTimeOnDifferentThreads) {
  constexpr int threads = 3;
  ThreadPool pool(threads);
  std::atomic<int> arrived = 0;
  std::vector<std::thread::id> ids(threads);
  pool.parallel_for(threads, [&](int64_t task, int) {
    ids[static_cast<size_t>(task)] = std::this_thread::get_id();
    arrived.fetch_add(1);
    while (arrived.load() < threads) std::this_thread::yield();
  });
  EXPECT_EQ(std::set<std::thread::id>(ids.begin(), ids.end()).size(), size_t{threads});
}

TEST(ThreadPool, SeveralPoolsAtOnceBeyondTheCpus) {
  std::atomic<int64_t> sum = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&sum] {
      ThreadPool pool(4);
      for (int round = 0; round < 200; ++round) pool.parallel_for(16, [&](int64_t task, int) { sum.fetch_add(task); });
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(sum.load(), 4 * 200 * 120);
}

TEST(ThreadPool, AnUnusedPoolStartsAndEndsWithoutThreads) {
  ThreadPool pool(64);
  EXPECT_EQ(pool.threads(), 64);
}

/// The exit status of a forked child that uses the pool of three threads.
int status_of_forked_use(ThreadPool& pool) {
  pid_t child = fork();
  if (child == 0) {
    std::atomic<int64_t> sum = 0;
    std::atomic<int> arrived = 0;
    pool.parallel_for(pool.threads(), [&](int64_t task, int) {  // needs live workers, as above
      sum.fetch_add(task + 1);
      arrived.fetch_add(1);
      while (arrived.load() < pool.threads()) std::this_thread::yield();
    });
    { ThreadPool another(2); }
    _exit(sum.load() == 6 ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

#if defined(__SANITIZE_THREAD__)
constexpr const char* no_threads_after_fork = "the thread sanitizer does not start threads after a fork with threads";
#elif PLAIT_TEST_EMULATED
constexpr const char* no_threads_after_fork = "the emulator does not start threads after a fork with threads";
#else
constexpr const char* no_threads_after_fork = nullptr;
#endif

TEST(ThreadPool, WorksInAForkedChildAndStillInTheParent) {
  if (no_threads_after_fork != nullptr) GTEST_SKIP() << no_threads_after_fork;
  ThreadPool pool(3);
  std::atomic<int64_t> sum = 0;
  pool.parallel_for(10, [&](int64_t task, int) { sum.fetch_add(task); });
  EXPECT_EQ(status_of_forked_use(pool), 0);
  EXPECT_EQ(status_of_forked_use(pool), 0);
  pool.parallel_for(10, [&](int64_t task, int) { sum.fetch_add(task); });
  EXPECT_EQ(sum.load(), 90);
}

TEST(ThreadPool, AForkedChildMayDropAPoolItNeverUses) {
  if (no_threads_after_fork != nullptr) GTEST_SKIP() << no_threads_after_fork;
  auto pool = std::make_unique<ThreadPool>(3);
  pool->parallel_for(10, [](int64_t, int) {});
  pid_t child = fork();
  if (child == 0) {
    pool.reset();  // must not wait for the parent's threads
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Restricted to one CPU, 64 threads: everything runs there, nothing asks for another CPU.
TEST(ThreadPool, StaysOnTheCpusThatAreAllowed) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &before)) ++cpu;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(usable_cpus(), 1);
  {
    ThreadPool pool(64);
    std::atomic<int> elsewhere = 0;
    std::atomic<int64_t> sum = 0;
    pool.parallel_for(256, [&](int64_t task, int) {
      sum.fetch_add(task);
      cpu_set_t mine;
      if (sched_getaffinity(0, sizeof mine, &mine) != 0 || !CPU_EQUAL(&mine, &one)) elsewhere.fetch_add(1);
    });
    EXPECT_EQ(elsewhere.load(), 0);
    EXPECT_EQ(sum.load(), 255 * 128);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

}  // namespace
}  // namespace plait
