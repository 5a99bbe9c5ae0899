// kill -9 of a rank at any moment of forward and backward: the others return an error that names it, long before the time-out, and work on
// in a new group; nothing is left behind.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>

#include "base/status_macros.h"
#include "failure_support.h"
#include "plait/counters.h"
#include "support/leftovers.h"
#include "support/processes.h"

namespace plait::test {
namespace {

/// The promise is 2 s; a survivor may have to wait for a CPU as well.
constexpr int64_t latest_ns = 10'000'000'000;

int num_points() {
  const char* full = std::getenv("PLAIT_TEST_FULL");
  return full != nullptr && std::string(full) == "1" ? 200 : 20;
}

/// Who dies when: at the nth of its calls to the group (polls included), or, without calls, some time after the first step of all.
struct Death {
  int size, victim;
  int64_t num_calls, delay_us;
  int threads;

  explicit Death(Random& random) {
    size = 2 + static_cast<int>(random.below(3));
    victim = static_cast<int>(random.below(size));
    num_calls = random.below(2) == 0 ? 1 + random.below(150) : 0;
    delay_us = random.below(15'000);
    threads = 1 + static_cast<int>(random.below(2));
  }
  std::string to_string() const {
    const std::string when = num_calls > 0 ? "call " + std::to_string(num_calls) : std::to_string(delay_us) + " us";
    return "rank " + std::to_string(victim) + " of " + std::to_string(size) + " at " + when + ", " + std::to_string(threads) + " threads";
  }
};

/// One death among ranks that make steps until they fail.
class Killing {
 public:
  Killing(const KnownLayer& layer, const Death& death) : layer_(layer), death_(death) {}

  void run() {
    Processes processes(death_.size, [this](int rank) { return live(rank); });
    ASSERT_TRUE(started_.wait_for(death_.size));
    if (death_.num_calls == 0) {
      pause_us(death_.delay_us);
      *time_of_death_ = now_ns();
      processes.kill(death_.victim);
    }
    const std::vector<Outcome> outcomes = processes.wait(90);
    for (int rank = 0; rank < death_.size; ++rank) {
      const Outcome& outcome = outcomes[static_cast<size_t>(rank)];
      EXPECT_EQ(outcome.to_string(), rank == death_.victim ? "signal 9" : "ok") << death_.to_string() << ", rank " << rank;
    }
    for (const char* group : {"g", "survivors"}) EXPECT_FALSE(name_in_use(job_, group)) << death_.to_string();
  }
  /// The longest time from the death to a survivor's error.
  int64_t latency_ns() const { return *latency_ns_; }

 private:
  Status live(int rank) const {
    PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, Context::create({.threads = death_.threads, .kernel = {}}));
    PLAIT_RETURN_IF_ERROR(check(work(rank, *context)));
    const int new_rank = rank < death_.victim ? rank : rank - 1;
    PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Group> group, join_shm_group(new_rank, death_.size - 1, job_, "survivors"));
    return layer_.step(*context, *group);
  }

  /// Steps until the first error.
  Status work(int rank, const Context& context) const {
    PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Group> group, join_shm_group(rank, death_.size, job_, "g"));
    std::atomic<int64_t> calls_left = 0;
    HookedGroup hooked(*group, [&](Group&, const GroupCall&) {
      if (calls_left.load() == 0 || calls_left.fetch_sub(1) != 1) return;
      *time_of_death_ = now_ns();
      raise(SIGKILL);
    });
    PLAIT_RETURN_IF_ERROR(layer_.step(context, hooked));
    started_.add();
    if (rank == death_.victim) calls_left = death_.num_calls;
    while (true) PLAIT_RETURN_IF_ERROR(layer_.step(context, hooked));
  }

  Status check(const Status& error) const {
    const int64_t died = *time_of_death_, latency = now_ns() - died;
    if (error.code() != StatusCode::peer_lost || error.rank() != death_.victim || error.stage().empty()) {
      return Status::internal("another error: " + error.to_string());
    }
    if (died == 0) return Status::internal("an error before the death: " + error.to_string());
    int64_t longest = *latency_ns_;
    while (latency > longest && !(*latency_ns_).compare_exchange_weak(longest, latency)) {
    }
    return {};
  }

  const KnownLayer& layer_;
  const Death death_;
  const std::string job_ = unique_job();
  SharedCounter started_;
  SharedNumber time_of_death_, latency_ns_;
};

class LayerKill : public testing::TestWithParam<Dispatcher> {};
INSTANTIATE_TEST_SUITE_P(Dispatchers, LayerKill, testing::ValuesIn(waiting_dispatchers()),
                         [](const auto& param_info) { return std::string(name(param_info.param)); });

TEST_P(LayerKill, AtRandomMoments) {
  const KnownLayer small(GetParam()), large(GetParam(), KnownLayer::Size::large);  // most deaths in waits, and in tiles
  Random random(2025);
  const int shared_before = count_shared_files();
  int64_t latency_ns = 0;
  for (int point = 0; point < num_points(); ++point) {
    Killing killing(point % 2 == 0 ? small : large, Death(random));
    killing.run();
    latency_ns = std::max(latency_ns, killing.latency_ns());
  }
  EXPECT_EQ(count_shared_files(), shared_before);
  RecordProperty("longest_ms_from_death_to_error", std::to_string(static_cast<double>(latency_ns) / 1e6));
  EXPECT_LT(latency_ns, latest_ns);
}

}  // namespace
}  // namespace plait::test
