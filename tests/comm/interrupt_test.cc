// GroupOptions::interrupted: what a user's interruption ends, and what the other ranks are told.

#include <string>
#include <thread>

#include "base/status_macros.h"
#include "engines.h"

namespace plait::test {
namespace {

thread_local bool this_rank_is_interrupted = false;

GroupOptions interruptible() {
  GroupOptions options;
  options.timeout_s = 3600;
  options.interrupted = [] { return this_rank_is_interrupted; };
  return options;
}

using InterruptTest = OnEngine;
INSTANTIATE_TEST_SUITE_P(Engines, InterruptTest, both_engines, engine_test_name);

/// Rank 1 makes `call` while the user interrupts it and the others do nothing; then all call again.
void expect_interrupted(Engine engine, const std::function<Status(Group&)>& call, std::string_view stage) {
  auto body = [&](Group& group) -> Status {
    PLAIT_RETURN_IF_ERROR(group.barrier("start"));
    if (group.rank() != 1) {
      while (group.health().ok()) std::this_thread::yield();
      return group.barrier("next");
    }
    this_rank_is_interrupted = true;
    Status status = call(group);
    this_rank_is_interrupted = false;
    const Status next = group.barrier("next");
    if (next.code() != StatusCode::aborted || next.rank() != 1) return wrong("after an interruption: " + next.to_string());
    return status;
  };
  const std::vector<Status> statuses = run_engine(engine, 3, interruptible(), body);
  for (int rank = 0; rank < 3; ++rank) {
    const Status& status = statuses[static_cast<size_t>(rank)];
    EXPECT_EQ(status.code(), rank == 1 ? StatusCode::interrupted : StatusCode::aborted) << status.to_string();
    EXPECT_EQ(status.rank(), 1) << status.to_string();
    EXPECT_EQ(status.stage(), stage);
    EXPECT_NE(status.message().find("rank 1 was interrupted while it waited for rank"), std::string::npos) << status.message();
  }
}

TEST_P(InterruptTest, EndsABarrier) {
  expect_interrupted(
      GetParam(), [](Group& group) { return group.barrier("dispatch"); }, "dispatch");
}

TEST_P(InterruptTest, EndsAnExchange) {
  expect_interrupted(
      GetParam(), [](Group& group) { return group.exchange("counts", {}).status(); }, "counts");
}

TEST_P(InterruptTest, EndsAWaitForASignal) {
  expect_interrupted(
      GetParam(), [](Group& group) { return group.wait(2, 0, 1, "rows"); }, "rows");
}

TEST_P(InterruptTest, WithoutAWaitNobodyAsks) {
  auto body = [](Group& group) -> Status {
    this_rank_is_interrupted = true;
    PLAIT_RETURN_IF_ERROR(group.signal(0, 1));
    Status status = group.wait(group.rank(), 0, 1, "own");
    this_rank_is_interrupted = false;
    PLAIT_RETURN_IF_ERROR(std::move(status));
    return group.barrier("end");
  };
  EXPECT_EQ(first_error(run_engine(GetParam(), 2, interruptible(), body)), "");
}

/// Only `rank` of three comes, and is interrupted. A host that waits for its guests, and a guest that waits for its host.
TEST(InterruptedJoin, EndsTheWaitForAGroupToForm) {
  for (int rank : {0, 1}) {
    const std::string job = unique_job();
    Processes processes(1, [&](int) -> Status {
      this_rank_is_interrupted = true;
      return join_shm_group(rank, 3, job, "ep", interruptible()).status();
    });
    const Outcome outcome = processes.wait(60).front();
    ASSERT_TRUE(outcome.exited) << outcome.to_string();
    EXPECT_EQ(outcome.status.code(), StatusCode::interrupted) << outcome.to_string();
    EXPECT_EQ(outcome.status.rank(), rank);
    EXPECT_NE(outcome.status.message().find("was interrupted while group 'ep'"), std::string::npos) << outcome.to_string();
  }
}

}  // namespace
}  // namespace plait::test
