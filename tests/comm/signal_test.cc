// Signals: monotonic counters between ranks, and the visibility that they give.

#include <cstring>

#include "base/status_macros.h"
#include "engines.h"

namespace plait::test {
namespace {

using SignalTest = OnEngineAndSize;
INSTANTIATE_TEST_SUITE_P(Engines, SignalTest, testing::Combine(both_engines, all_sizes), engine_size_test_name);
using SignalErrorTest = OnEngine;
INSTANTIATE_TEST_SUITE_P(Engines, SignalErrorTest, both_engines, engine_test_name);

TEST_P(SignalTest, RowsWrittenBeforeASignalAreSeenAfterTheWait) {
  constexpr int num_chunks = 200;
  auto body = [](Group& group) -> Status {
    PLAIT_ASSIGN_OR_RETURN(const Region region, group.allocate(num_chunks * 8));
    PLAIT_ASSIGN_OR_RETURN(const Exchange exchange, group.exchange("publish", {}, {&region, 1}));
    for (uint64_t chunk = 0; chunk < num_chunks; ++chunk) {
      const uint64_t value = chunk * 1000 + static_cast<uint64_t>(group.rank());
      std::memcpy(region.data() + chunk * 8, &value, 8);
      PLAIT_RETURN_IF_ERROR(group.signal(3, chunk + 1));
      for (int peer = 0; peer < group.size(); ++peer) {
        PLAIT_RETURN_IF_ERROR(group.wait(peer, 3, chunk + 1, "rows"));
        if (group.signal_value(peer, 3) < chunk + 1) return wrong("signal_value");
        uint64_t theirs = 0;
        std::memcpy(&theirs, exchange.regions[0][static_cast<size_t>(peer)].data() + chunk * 8, 8);
        if (theirs != chunk * 1000 + static_cast<uint64_t>(peer)) return wrong("row of rank " + std::to_string(peer));
      }
    }
    return group.barrier("end");
  };
  EXPECT_EQ(first_error(run_engine(engine(), size(), {}, body)), "");
}

TEST_P(SignalTest, ChannelsAreIndependent) {
  auto value = [](int rank, int channel) { return static_cast<uint64_t>(1 + 100 * rank + channel); };
  auto body = [&](Group& group) -> Status {
    for (int channel = 15; channel >= 0; --channel) PLAIT_RETURN_IF_ERROR(group.signal(channel, value(group.rank(), channel)));
    for (int peer = 0; peer < group.size(); ++peer) {
      PLAIT_RETURN_IF_ERROR(group.wait(peer, 0, value(peer, 0), "all set"));
      for (int channel = 0; channel < 16; ++channel) {
        if (group.signal_value(peer, channel) != value(peer, channel)) return wrong("channel " + std::to_string(channel));
      }
    }
    return group.barrier("end");
  };
  EXPECT_EQ(first_error(run_engine(engine(), size(), {}, body)), "");
}

TEST_P(SignalErrorTest, AFallingValueAnImpossibleChannelOrRankStopAllRanks) {
  const std::vector<std::pair<std::function<Status(Group&)>, const char*>> cases = {
      {[](Group& group) { return group.signal(0, 4); }, "signals 4 on channel 0, which is at 5"},
      {[](Group& group) { return group.signal(16, 4); }, "channel 16"},
      {[](Group& group) { return group.signal(-1, 4); }, "channel -1"},
      {[](Group& group) { return group.wait(2, 0, 1, "bad"); }, "of rank 2"},
      {[](Group& group) { return group.wait(0, 99, 1, "bad"); }, "channel 99"},
  };
  for (const auto& [call, text] : cases) {
    const std::string expected = text;
    auto body = [&, do_call = call](Group& group) -> Status {
      PLAIT_RETURN_IF_ERROR(group.signal(0, 5));
      PLAIT_RETURN_IF_ERROR(group.signal(0, 5));  // not falling is enough
      PLAIT_RETURN_IF_ERROR(group.barrier("start"));
      if (group.rank() == 1) {
        if (do_call(group).ok()) return wrong("accepted");
      }
      const Status status = group.barrier("end");
      return status.message().find(expected) != std::string::npos && status.rank() == 1 ? Status() : wrong(status.to_string());
    };
    EXPECT_EQ(first_error(run_engine(GetParam(), 2, {}, body)), "") << text;
  }
}

}  // namespace
}  // namespace plait::test
