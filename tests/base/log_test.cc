#include "base/log.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace plait {
namespace {

TEST(Log, ReachesTheSinkUpToItsLevelAndNothingWithoutOne) {
  std::vector<std::string> lines;
  log(LogLevel::error, "before");
  set_log_sink([&lines](LogLevel, std::string_view text) { lines.emplace_back(text); }, LogLevel::warning);
  log(LogLevel::error, "an error");
  log(LogLevel::warning, "a warning");
  log(LogLevel::info, "too fine");
  set_log_sink({}, LogLevel::debug);
  log(LogLevel::error, "after");
  EXPECT_EQ(lines, (std::vector<std::string>{"an error", "a warning"}));
}

TEST(Log, LinesOfManyThreadsArriveOneAtATime) {
  int count = 0;  // unsynchronised on purpose: the sink is called under a lock
  set_log_sink([&count](LogLevel, std::string_view) { ++count; }, LogLevel::info);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 500; ++i) log(LogLevel::info, "line");
    });
  }
  for (auto& thread : threads) thread.join();
  set_log_sink({}, LogLevel::error);
  EXPECT_EQ(count, 2000);
}

}  // namespace
}  // namespace plait
