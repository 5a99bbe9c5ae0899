#include "observe/replay_group.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/status_macros.h"
#include "observe/measure.h"
#include "run_support.h"

namespace plait {
namespace {

constexpr int channel = 5;

Status wrong(const std::string& text) { return Status::internal("check failed: " + text); }

void expect_ok(const std::vector<Status>& statuses) {
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.to_string();
}

/// A step as an overlapping dispatcher makes it: publish, write, signal, poll, read where the peers' rows lie. The sum of all ranks' rows.
Result<int64_t> toy_step(Group& group, int64_t value) {
  PLAIT_ASSIGN_OR_RETURN(const Region region, group.allocate(8));
  PLAIT_ASSIGN_OR_RETURN(const Exchange exchange, group.exchange("publish", std::as_bytes(std::span(&value, 1)), {&region, 1}));
  const uint64_t sequence = group.signal_value(group.rank(), channel) + 1;
  std::memcpy(region.data(), &value, 8);
  PLAIT_RETURN_IF_ERROR(group.signal(channel, sequence));
  int64_t sum = 0;
  for (int peer = 0; peer < group.size(); ++peer) {
    if (group.signal_value(peer, channel) < sequence) PLAIT_RETURN_IF_ERROR(group.wait(peer, channel, sequence, "rows"));
    if (group.signal_value(peer, channel) < sequence) return wrong("signal_value");
    int64_t row = 0, announced = 0;
    std::memcpy(&row, exchange.regions[0][static_cast<size_t>(peer)].data(), 8);
    std::memcpy(&announced, exchange.payload(peer).data(), 8);
    if (row != announced) return wrong("row");
    sum += row;
  }
  PLAIT_RETURN_IF_ERROR(group.barrier("end"));
  return sum;
}

TEST(ReplayGroup, AReplayWaitsForNobodyAndSeesThePeersRows) {
  expect_ok(run_ranks(3, {}, [](Group& group) -> Status {
    ReplayGroup record(group);
    PLAIT_ASSIGN_OR_RETURN(const int64_t sum, toy_step(record, 10 + group.rank()));
    if (sum != 33 || record.num_views() != 3) return wrong("recorded step");
    for (int rank = 0; rank < group.size(); ++rank) {
      // One rank replays, twice, while the others wait in a barrier of the group below: nobody answers it.
      for (int i = 0; rank == group.rank() && i < 2; ++i) {
        record.replay();
        PLAIT_ASSIGN_OR_RETURN(const int64_t again, toy_step(record, 10 + group.rank()));
        PLAIT_RETURN_IF_ERROR(record.finished());
        if (again != 33) return wrong("replayed step");
        if (group.signal_value(group.rank(), channel) != 1) return wrong("the group's counter moved");
      }
      PLAIT_RETURN_IF_ERROR(group.barrier("turn"));
    }
    // A real step after a replay is as it would be without.
    PLAIT_ASSIGN_OR_RETURN(const int64_t real, toy_step(group, 100 * group.rank()));
    return real == 300 && group.signal_value(0, channel) >= 2 ? Status() : wrong("step after the replay");
  }));
}

TEST(ReplayGroup, RowsAreNotMoved) {
  expect_ok(run_ranks(2, {}, [](Group& group) -> Status {
    PLAIT_ASSIGN_OR_RETURN(std::unique_ptr<Context> context, Context::create({.threads = 1, .kernel = ""}));
    ReplayGroup record(group);
    auto move = [&](std::byte* to) -> Status {
      PLAIT_ASSIGN_OR_RETURN(const Region region, record.allocate(4));
      std::memset(region.data(), 1 + group.rank(), 4);
      PLAIT_ASSIGN_OR_RETURN(const Exchange exchange, record.exchange("publish", {}, {&region, 1}));
      const int peer = 1 - group.rank();
      const SendBlock send{peer, 0, 4};
      const RecvBlock recv{peer, 0, 4, to};
      return record.all_to_all_v(*context, "rows", region, exchange.regions[0], {&send, 1}, {&recv, 1});
    };
    std::byte first[4]{}, second[4]{};
    PLAIT_RETURN_IF_ERROR(move(first));
    PLAIT_RETURN_IF_ERROR(group.barrier("recorded"));
    record.replay();
    PLAIT_RETURN_IF_ERROR(move(second));
    return first[3] == std::byte(2 - group.rank()) && second[3] == std::byte{0} ? Status() : wrong("rows");
  }));
}

/// What a replay says where `calls` differ from the recorded step: allocate 8, exchange of 8 bytes and one region.
std::string mismatch(const std::function<Status(Group&)>& calls) {
  std::string message;
  expect_ok(run_ranks(1, {}, [&](Group& group) -> Status {
    ReplayGroup record(group);
    PLAIT_RETURN_IF_ERROR(toy_step(record, 1).status());
    record.replay();
    Status status = calls(record);
    if (status.ok()) status = record.finished();
    if (!status.ok() && status.code() != StatusCode::internal) return wrong(status.to_string());
    message = status.message();
    return {};
  }));
  return message;
}

TEST(ReplayGroup, ACallThatDiffersIsNamed) {
  EXPECT_EQ(mismatch([](Group& group) { return toy_step(group, 1).status(); }), "");
  EXPECT_NE(mismatch([](Group& group) { return group.allocate(9).status(); }).find("'allocate 9 bytes', but 'allocate 8 bytes'"), std::string::npos);
  EXPECT_NE(mismatch([](Group& group) { return group.exchange("publish", {}, {}).status(); }).find("call 0"), std::string::npos);
  EXPECT_NE(mismatch([](Group& group) -> Status {
              PLAIT_RETURN_IF_ERROR(group.allocate(8).status());
              return group.exchange("publish", {}, {}).status();
            }).find("of 0 bytes and 0 regions', but 'exchange 'publish' of 8 bytes and 1 regions'"),
            std::string::npos);
  EXPECT_NE(mismatch([](Group& group) -> Status {
              PLAIT_RETURN_IF_ERROR(toy_step(group, 1).status());
              return group.allocate(8).status();
            }).find("the end of the step"),
            std::string::npos);
  EXPECT_NE(mismatch([](Group& group) { return group.allocate(8).status(); }).find("after 1 of 2 recorded calls"), std::string::npos);
}

TEST(MeasureCompute, RunsForEveryDispatcherAndLeavesNothingBehind) {
  for (int ranks : {1, 2, 4}) {
    expect_ok(run_ranks(ranks, {}, [&](Group& group) -> Status {
      Case c = test::small_case(ranks);
      PLAIT_ASSIGN_OR_RETURN(std::unique_ptr<Context> context, Context::create({.threads = 2, .kernel = ""}));
      PLAIT_ASSIGN_OR_RETURN(CaseInputs inputs, make_inputs(*context, c, rank_tokens(c, group.rank())));
      PLAIT_ASSIGN_OR_RETURN(LayerRun run, LayerRun::create(*context, group, c, std::move(inputs)));
      for (Dispatcher dispatcher : all_dispatchers()) {
        for (bool backward : {false, true}) {
          PLAIT_ASSIGN_OR_RETURN(const StepSample first, measure_step(run, dispatcher, backward));
          PLAIT_ASSIGN_OR_RETURN(const StepSample before, measure_step(run, first.ran, backward));
          ResultCopies results(run.results(backward));
          if (first.ran != dispatcher && dispatcher != Dispatcher::automatic) return wrong("another dispatcher ran");
          PLAIT_ASSIGN_OR_RETURN(const double ms, measure_compute(run, before.ran, backward));
          if (ms <= 0) return wrong("no time");
          if (&run.group() != &group || group.window_bytes() != 0) return wrong(std::to_string(group.window_bytes()) + " bytes of window left");
          PLAIT_ASSIGN_OR_RETURN(const StepSample after, measure_step(run, before.ran, backward));
          if (after.peak_bytes != before.peak_bytes || after.bytes_sent != before.bytes_sent) return wrong("the next step differs");
          std::vector<NamedResult> again = run.results(backward);
          for (size_t i = 0; i < again.size(); ++i) {
            if (!compare_bits(again[i].view, results.items()[i].view).equal) return wrong(std::string(again[i].name));
          }
        }
      }
      return {};
    }));
  }
}

}  // namespace
}  // namespace plait
