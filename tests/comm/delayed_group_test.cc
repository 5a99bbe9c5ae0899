// A group with slow peers gives the same results; the tests of overlapping code run through it.

#include "support/delayed_group.h"

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/status_macros.h"
#include "engines.h"

namespace plait::test {
namespace {

constexpr int num_chunks = 40;
constexpr int num_ranks = 3;

/// Polls peers' counters in turn, as a scheduler does: each must rise to `num_chunks` without ever falling, with the chunk's row in place.
Status poll_rows(Group& group, const Exchange& exchange, int channel, uint64_t base) {
  std::vector<uint64_t> seen(static_cast<size_t>(group.size()), base);
  for (int num_done = 0; num_done < group.size();) {
    num_done = 0;
    for (int peer = 0; peer < group.size(); ++peer) {
      uint64_t& last = seen[static_cast<size_t>(peer)];
      const uint64_t value = group.signal_value(peer, channel);
      if (value < last || value > base + num_chunks) return wrong("a counter that falls or is too large");
      last = value;
      for (uint64_t chunk = base; chunk < value; ++chunk) {
        uint64_t row = 0;
        std::memcpy(&row, exchange.regions[0][static_cast<size_t>(peer)].data() + (chunk - base) * 8, 8);
        if (row != chunk * 1000 + static_cast<uint64_t>(peer)) return wrong("row of rank " + std::to_string(peer));
      }
      num_done += value == base + num_chunks ? 1 : 0;
    }
    std::this_thread::yield();
    PLAIT_RETURN_IF_ERROR(group.health());
  }
  return {};
}

/// One step: some peers are polled, then waited for.
Status signal_step(Group& group, int channel) {
  PLAIT_ASSIGN_OR_RETURN(const Region region, group.allocate(num_chunks * 8));
  PLAIT_ASSIGN_OR_RETURN(const Exchange exchange, group.exchange("publish", {}, {&region, 1}));
  const uint64_t base = group.signal_value(group.rank(), channel);
  for (uint64_t chunk = base; chunk < base + num_chunks; ++chunk) {
    const uint64_t row = chunk * 1000 + static_cast<uint64_t>(group.rank());
    std::memcpy(region.data() + (chunk - base) * 8, &row, 8);
    PLAIT_RETURN_IF_ERROR(group.signal(channel, chunk + 1));
    const int peer = static_cast<int>(chunk) % group.size();
    PLAIT_RETURN_IF_ERROR(group.wait(peer, channel, base + 1, "first row"));
    if (group.signal_value(peer, channel) < base + 1) return wrong("a counter below what was waited for");
  }
  PLAIT_RETURN_IF_ERROR(poll_rows(group, exchange, channel, base));
  return group.barrier("end");
}

TEST(DelayedGroup, SignalsAndExchangesAreRightForEverySeed) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::atomic<int64_t> num_late = 0;
    auto body = [&](Group& group) -> Status {
      DelayedGroup delayed(group, seed);
      for (int channel : {0, 7, 0}) PLAIT_RETURN_IF_ERROR(signal_step(delayed, channel));
      num_late += delayed.num_late_polls();
      return {};
    };
    EXPECT_EQ(first_error(run_engine(Engine::threads, num_ranks, {}, body)), "") << "seed " << seed;
    EXPECT_GT(num_late, 0) << "seed " << seed << ": nothing was delayed";
  }
}

TEST(DelayedGroup, ThreadsOfARankMayPollTogether) {
  auto body = [](Group& group) -> Status {
    DelayedGroup delayed(group, 3);
    std::vector<std::thread> threads;
    std::vector<Status> statuses(2);
    for (Status& status : statuses) {
      threads.emplace_back([&] {
        for (uint64_t last = 0, value = 0; last < num_chunks; last = value) {
          value = delayed.signal_value(1 - group.rank(), 2);
          if (value < last) status = wrong("a counter that falls");
          std::this_thread::yield();
        }
      });
    }
    Status status;
    for (uint64_t chunk = 1; status.ok() && chunk <= num_chunks; ++chunk) status = delayed.signal(2, chunk);
    for (std::thread& thread : threads) thread.join();
    if (status.ok()) status = delayed.barrier("end");
    statuses.push_back(status);
    for (const Status& s : statuses) PLAIT_RETURN_IF_ERROR(s);
    return {};
  };
  EXPECT_EQ(first_error(run_engine(Engine::threads, 2, {}, body)), "");
}

TEST(DelayedGroup, LagsAreThoseOfTheSeed) {
  auto groups = make_thread_groups(2);
  ASSERT_TRUE(groups.ok());
  Group &own = *(*groups)[0], &peer = *(*groups)[1];
  auto lags = [&](uint64_t seed, int channel) {  // a counter that is high from the start: what the polls show until they show all of it
    DelayedGroup delayed(own, seed);
    std::vector<uint64_t> shown;
    do {
      shown.push_back(delayed.signal_value(1, channel));
    } while (shown.back() < 1000 && shown.size() < 10000);
    EXPECT_EQ(shown.back(), 1000U);
    return shown;
  };
  for (int channel : {0, 1, 2}) ASSERT_TRUE(peer.signal(channel, 1000).ok());
  bool other_seed_differs = false, other_channel_differs = false;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    EXPECT_EQ(lags(seed, 0), lags(seed, 0));
    other_seed_differs = other_seed_differs || lags(seed, 0) != lags(seed + 1, 0);
    other_channel_differs = other_channel_differs || lags(seed, 1) != lags(seed, 2);
  }
  EXPECT_TRUE(other_seed_differs);
  EXPECT_TRUE(other_channel_differs);
  ASSERT_TRUE(own.signal(0, 5).ok());
  EXPECT_EQ(DelayedGroup(own, 1).signal_value(0, 0), 5U) << "this rank's own counter is exact";
}

}  // namespace
}  // namespace plait::test
