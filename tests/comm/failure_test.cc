// Failures of ranks that live: another call, another size, no call at all, an abort. Every rank gets one error that names the culprit.

#include <atomic>
#include <stdexcept>
#include <thread>

#include "base/status_macros.h"
#include "engines.h"
#include "plait/counters.h"

namespace plait::test {
namespace {

using FailureTest = OnEngine;
INSTANTIATE_TEST_SUITE_P(Engines, FailureTest, both_engines, engine_test_name);

/// Runs `call` on every rank after an agreed start and expects the same error everywhere.
void expect_same_error(Engine engine, int size, const std::function<Status(Group&)>& call, StatusCode code, int rank,
                       const std::vector<std::string>& parts) {
  auto body = [&](Group& group) -> Status {
    PLAIT_RETURN_IF_ERROR(group.barrier("start"));
    const Status first = call(group);
    if (first.ok()) return wrong("no error");
    const Status later = group.barrier("later");
    if (later.to_string() != first.to_string()) return wrong("another error later: " + later.to_string());
    if (group.allocate(1).ok() || group.signal(0, 1).ok() || group.health().ok()) return wrong("a call works after the failure");
    if (group.wait(group.rank(), 0, 99, "never").ok() || group.exchange("x", {}).ok()) return wrong("a call works after the failure");
    return first;
  };
  const std::vector<Status> statuses = run_engine(engine, size, {}, body);
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_EQ(status.rank(), rank) << status.to_string();
    EXPECT_EQ(status.to_string(), statuses[0].to_string());
    for (const std::string& part : parts) EXPECT_NE(status.message().find(part), std::string::npos) << part << " is not in: " << status.to_string();
  }
}

TEST_P(FailureTest, AnotherStageNamesBothRanksAndBothStages) {
  for (int odd : {0, 1, 2}) {
    const std::string reference = odd == 0 ? "rank 1" : "rank 0";
    expect_same_error(GetParam(), 3, [&](Group& group) { return group.barrier(group.rank() == odd ? "combine" : "dispatch"); },
                      StatusCode::invalid_argument, odd,
                      {"rank " + std::to_string(odd) + " calls barrier 'combine'", reference + " calls barrier 'dispatch'"});
  }
}

TEST_P(FailureTest, AnotherPayloadSizeNamesBothRanksAndBothSizes) {
  auto call = [](Group& group) { return group.exchange("counts", std::vector<std::byte>(group.rank() == 1 ? 70'000 : 64)).status(); };
  expect_same_error(GetParam(), 4, call, StatusCode::invalid_argument, 1,
                    {"rank 1 calls exchange 'counts' of 70000 bytes", "rank 0 calls exchange 'counts' of 64 bytes"});
}

TEST_P(FailureTest, AnotherCallNamesBothRanks) {
  auto call = [](Group& group) { return group.rank() == 0 ? group.barrier("x") : group.exchange("x", {}).status(); };
  expect_same_error(GetParam(), 2, call, StatusCode::invalid_argument, 1, {"rank 1 calls exchange 'x' of 0 bytes", "rank 0 calls barrier 'x'"});
}

TEST_P(FailureTest, ARankThatDoesNotCallIsNamedAfterTheTimeOut) {
  auto body = [](Group& group) -> Status {
    PLAIT_RETURN_IF_ERROR(group.barrier("before"));
    if (group.rank() != 2) return group.exchange("dispatch", {}).status();
    while (group.health().ok()) std::this_thread::yield();
    return group.health();
  };
  for (const Status& status : run_engine(GetParam(), 4, {0.3, 20}, body)) {
    EXPECT_EQ(status.code(), StatusCode::timeout);
    EXPECT_EQ(status.rank(), 2);
    EXPECT_EQ(status.stage(), "dispatch");
    for (const char* part : {"rank 2 did not reach 'dispatch' within 0.3 s", "barrier 'before'"}) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
  }
}

TEST_P(FailureTest, AMissingSignalIsNamedAfterTheTimeOut) {
  auto body = [](Group& group) -> Status {
    PLAIT_RETURN_IF_ERROR(group.signal(2, 7));
    if (group.rank() == 0) return group.wait(1, 2, 8, "rows of expert 5");
    while (group.health().ok()) std::this_thread::yield();
    return group.health();
  };
  for (const Status& status : run_engine(GetParam(), 2, {0.2, 20}, body)) {
    EXPECT_EQ(status.code(), StatusCode::timeout);
    EXPECT_EQ(status.rank(), 1);
    EXPECT_EQ(status.stage(), "rows of expert 5");
  }
}

TEST_P(FailureTest, ARankThatLeavesIsNamed) {
  for (int leaver : {0, 2}) {
    auto body = [&](Group& group) -> Status {
      PLAIT_RETURN_IF_ERROR(group.exchange("counts", {}).status());
      if (group.rank() == leaver) return {};
      return group.barrier("combine");
    };
    const std::vector<Status> statuses = run_engine(GetParam(), 3, {}, body);
    for (int rank = 0; rank < 3; ++rank) {
      const Status& status = statuses[static_cast<size_t>(rank)];
      EXPECT_EQ(status.ok(), rank == leaver) << status.to_string();
      if (status.ok()) continue;
      EXPECT_EQ(status.code(), StatusCode::peer_lost);
      EXPECT_EQ(status.rank(), leaver);
      EXPECT_EQ(status.stage(), "combine");
      EXPECT_NE(status.message().find("rank " + std::to_string(leaver) + " left the group after exchange 'counts'"), std::string::npos)
          << status.message();
    }
  }
}

TEST_P(FailureTest, LeavingAfterTheLastCallIsNoError) {
  auto body = [](Group& group) { return group.barrier("only"); };
  for (int repeat = 0; repeat < 30; ++repeat) EXPECT_EQ(first_error(run_engine(GetParam(), 4, {}, body)), "");
}

TEST_P(FailureTest, AnAbortReachesAllRanksWithItsReason) {
  auto body = [](Group& group) -> Status {
    if (group.rank() == 1) {
      group.abort(Status::invalid_argument("row 7 is NaN").at_rank(3).in_stage("route").at_expert(5));
      group.abort(Status::internal("a later reason"));
      return group.barrier("next");
    }
    return group.rank() == 0 ? group.wait(1, 0, 1, "rows") : group.barrier("next");
  };
  for (const Status& status : run_engine(GetParam(), 4, {}, body)) {
    EXPECT_EQ(status.code(), StatusCode::aborted);
    EXPECT_EQ(status.message(), "rank 1 stopped the group: invalid argument: row 7 is NaN");
    EXPECT_EQ(status.rank(), 3);
    EXPECT_EQ(status.expert(), 5);
    EXPECT_EQ(status.stage(), "route");
  }
}

TEST_P(FailureTest, LongReasonsAreCutNotLost) {
  auto body = [](Group& group) -> Status {
    if (group.rank() == 0) group.abort(Status::internal(std::string(10'000, 'x')).in_stage(std::string(500, 's')));
    while (group.health().ok()) std::this_thread::yield();
    return group.health();
  };
  for (const Status& status : run_engine(GetParam(), 2, {}, body)) {
    EXPECT_EQ(status.code(), StatusCode::aborted);
    EXPECT_GT(status.message().size(), 1000U);
    EXPECT_GT(status.stage().size(), 40U);
  }
}

TEST_P(FailureTest, ManyFailAtOnceAndAllSeeOneReason) {
  auto body = [](Group& group) -> Status {
    PLAIT_RETURN_IF_ERROR(group.barrier("start"));
    group.abort(Status::internal("mine").at_rank(group.rank()));
    return group.health();
  };
  for (int repeat = 0; repeat < 20; ++repeat) {
    const std::vector<Status> statuses = run_engine(GetParam(), 4, {}, body);
    for (const Status& status : statuses) EXPECT_EQ(status.to_string(), statuses[0].to_string());
  }
}

TEST(FailureThreadsTest, ABodyThatThrowsStopsTheOthers) {
  const std::vector<Status> statuses = run_ranks(3, {}, [](Group& group) -> Status {
    if (group.rank() == 1) throw std::runtime_error("no such file");
    return group.barrier("next");
  });
  EXPECT_EQ(statuses[1].code(), StatusCode::internal);
  for (const Status& status : statuses) EXPECT_NE(status.message().find("no such file"), std::string::npos) << status.to_string();
}

TEST_P(FailureTest, ANewGroupWorksAfterAFailure) {
  const std::string job = unique_job();
  auto rounds = [](Group& group) -> Status {
    PLAIT_RETURN_IF_ERROR(group.barrier("good"));
    const Status status = group.barrier(group.rank() == 0 ? "a" : "b");
    return status.code() == StatusCode::invalid_argument ? Status() : wrong(status.to_string());
  };
  if (GetParam() == Engine::threads) {
    for (int repeat = 0; repeat < 5; ++repeat) EXPECT_EQ(first_error(run_ranks(3, {}, rounds)), "");
    return;
  }
  Processes processes(3, [&](int rank) -> Status {  // the same name each time, in the same processes
    for (int repeat = 0; repeat < 5; ++repeat) {
      PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Group> group, join_shm_group(rank, 3, job, "g"));
      PLAIT_RETURN_IF_ERROR(rounds(*group));
    }
    return {};
  });
  for (const Outcome& outcome : processes.wait()) EXPECT_EQ(outcome.to_string(), "ok");
}

TEST_P(FailureTest, ExchangesAndWaitsAreRecorded) {
  auto body = [](Group& group) -> Status {
    Recorder recorder;
    group.record_to(&recorder);
    for (int i = 0; i < 3; ++i) PLAIT_RETURN_IF_ERROR(group.exchange("x", {}).status());
    if (group.rank() == 1) PLAIT_RETURN_IF_ERROR(group.wait(0, 0, 1, "late"));
    if (group.rank() == 0) {
      std::this_thread::yield();
      PLAIT_RETURN_IF_ERROR(group.signal(0, 1));
    }
    group.record_to(nullptr);
    PLAIT_RETURN_IF_ERROR(group.exchange("unrecorded", {}).status());
    if (recorder.value(Counter::exchanges) != 3) return wrong("exchanges");
    return (recorder.value(Counter::waits) > 0) == (recorder.value(Counter::wait_ns) > 0) ? Status() : wrong("waits and their time");
  };
  EXPECT_EQ(first_error(run_engine(GetParam(), 2, {}, body)), "");
}

}  // namespace
}  // namespace plait::test
