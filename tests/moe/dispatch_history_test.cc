// What auto learns, forgets and chooses.

#include "moe/dispatch_history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "moe/dispatch_cache.h"
#include "plan/dispatch_rule.h"
#include "support/processes.h"

namespace plait::test {
namespace {

using moe::CandidateTimes;
using moe::DispatchCache;
using moe::DispatchChoice;
using moe::DispatchHistory;

const DispatchChoice fused_by_rule{Dispatcher::mc2, "rule"};

void measure(DispatchHistory& history, Dispatcher dispatcher, int64_t forward_ns, int64_t backward_ns, int times = 2) {
  for (int i = 0; i < times; ++i) {
    const std::vector<int64_t> forward = {forward_ns / 2, forward_ns}, backward = {backward_ns, 0};
    history.record("kind", dispatcher, false, forward);
    history.record("kind", dispatcher, true, backward);
  }
}

TEST(DispatchHistory, WithoutMeasurementsTheRuleDecides) {
  DispatchHistory history;
  EXPECT_EQ(history.choose("kind", fused_by_rule).dispatcher, Dispatcher::mc2);
  EXPECT_EQ(history.choose("kind", {Dispatcher::alltoall, "rule"}).reason, "rule");
}

TEST(DispatchHistory, TheOtherIsTriedOnceTheRulesIsKnownAndNotAgain) {
  DispatchHistory history;
  std::vector<Dispatcher> chosen;
  for (int call = 0; call < 40; ++call) {
    chosen.push_back(history.choose("kind", fused_by_rule).dispatcher);
    measure(history, chosen.back(), 1000, 2000, 1);
  }
  EXPECT_EQ(std::count(chosen.begin(), chosen.end(), Dispatcher::alltoall), 2);
  EXPECT_EQ(std::count(chosen.begin(), chosen.begin() + 8, Dispatcher::mc2), 8);
}

TEST(DispatchHistory, AClearlyFasterOneIsTakenAndTheReasonHasBothTimes) {
  DispatchHistory history;
  measure(history, Dispatcher::mc2, 1'000'000, 2'000'000);
  measure(history, Dispatcher::alltoall, 900'000, 2'000'000);
  const DispatchChoice choice = history.choose("kind", fused_by_rule);
  EXPECT_EQ(choice.dispatcher, Dispatcher::alltoall);
  EXPECT_EQ(choice.reason, "measured step: mc2 3.000 ms, alltoall 2.900 ms");
  EXPECT_EQ(history.choose("another kind", fused_by_rule).dispatcher, Dispatcher::mc2);
}

TEST(DispatchHistory, ANearTieStaysWithTheRule) {
  DispatchHistory history;
  measure(history, Dispatcher::mc2, 1'000'000, 2'000'000);
  measure(history, Dispatcher::alltoall, 990'000, 2'000'000);
  EXPECT_EQ(history.choose("kind", fused_by_rule).dispatcher, Dispatcher::mc2);
}

TEST(DispatchHistory, WithoutBackwardForwardAloneDecides) {
  DispatchHistory history;
  measure(history, Dispatcher::mc2, 1'000'000, 0);
  measure(history, Dispatcher::alltoall, 900'000, 0);
  EXPECT_EQ(history.choose("kind", fused_by_rule).dispatcher, Dispatcher::alltoall);
}

TEST(DispatchHistory, SeedsCountUntilTheRunHasItsOwnTimes) {
  DispatchHistory history;
  CandidateTimes times;
  times[0] = {500, 500, 0};    // alltoall
  times[1] = {1000, 1000, 0};  // mc2
  history.seed("kind", times);
  EXPECT_EQ(history.choose("kind", fused_by_rule).dispatcher, Dispatcher::alltoall);
  times[1] = {10, 10, 0};
  history.seed("kind", times);
  EXPECT_EQ(history.choose("kind", fused_by_rule).dispatcher, Dispatcher::alltoall);
}

TEST(DispatchRule, FewRowsAreCopiedManyAreNot) {
  plan::ExchangeCase c{.tokens = 1, .top_k = 8, .experts_per_rank = 32, .row_bytes = 1024};
  EXPECT_LT(plan::unfused_cost_us(c), plan::fused_cost_us(c));
  c.tokens = 1024;
  EXPECT_GT(plan::unfused_cost_us(c), plan::fused_cost_us(c));
}

class DispatchCacheTest : public testing::Test {
 protected:
  void SetUp() override { folder_ = std::filesystem::path(testing::TempDir()) / unique_job(); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return (folder_ / "deep" / "dispatchers.txt").string(); }

  std::filesystem::path folder_;
};

TEST_F(DispatchCacheTest, LinesComeBackAndBrokenOnesDoNot) {
  DispatchCache cache(path());
  EXPECT_TRUE(cache.load().empty());
  CandidateTimes times;
  times[0] = {1, 2, 0};
  times[1] = {3, 4, 0};
  cache.store("CPU, shm 2 threads, bf16 h8", times);
  std::ofstream(path(), std::ios::app) << "half a line\t1 2\nno numbers\t\n\t1 2 3 4\nnegative\t-1 2 3 4\nwords\ta b c d\n";
  cache.store("other", times);
  const auto lines = cache.load();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines.begin()->second[1].backward_ns, 4);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ / "deep"), {}), 1);  // nothing half written stays
}

TEST_F(DispatchCacheTest, ManyProcessesLeaveAWholeFile) {
  Processes processes(4, [&](int index) -> Status {
    CandidateTimes times;
    times[0] = times[1] = {index + 1, index + 1, 0};
    for (int i = 0; i < 50; ++i) {
      DispatchCache(path()).store("rank " + std::to_string(index), times);
      for (const auto& [key, values] : DispatchCache(path()).load()) {
        if (key != "rank " + std::to_string(values[1].backward_ns - 1)) return Status::internal("a torn line: " + key);
      }
    }
    return {};
  });
  for (const Outcome& outcome : processes.wait()) EXPECT_EQ(outcome.to_string(), "ok");
  EXPECT_FALSE(DispatchCache(path()).load().empty());
}

TEST_F(DispatchCacheTest, AFolderThatCannotBeMadeIsNoError) {
  DispatchCache cache("/proc/nothing/dispatchers.txt");
  cache.store("key", {});
  EXPECT_TRUE(cache.load().empty());
}

}  // namespace
}  // namespace plait::test
