// Exchanges and barriers: payloads of many sizes arrive whole and from the right rank.

#include <cstring>
#include <thread>

#include "base/status_macros.h"
#include "comm/shm/join.h"
#include "comm/threads/join.h"
#include "engines.h"

namespace plait::test {
namespace {

using ExchangeTest = OnEngineAndSize;
INSTANTIATE_TEST_SUITE_P(Engines, ExchangeTest, testing::Combine(both_engines, all_sizes), engine_size_test_name);

Status exchange_sizes(Group& group, std::span<const int64_t> sizes) {
  int step = 0;
  for (int64_t bytes : sizes) {
    const std::vector<std::byte> payload = origin_bytes(group.rank(), step, bytes);
    PLAIT_ASSIGN_OR_RETURN(const Exchange exchange, group.exchange("sizes", payload));
    if (exchange.payload_bytes != bytes) return wrong("payload_bytes");
    for (int peer = 0; peer < group.size(); ++peer) {
      PLAIT_RETURN_IF_ERROR(check_origin(exchange.payload(peer).data(), bytes, peer, step));
      if (exchange.regions[0][static_cast<size_t>(peer)].data() != nullptr) return wrong("a region that nobody published");
    }
    ++step;
  }
  return group.barrier("end");
}

TEST_P(ExchangeTest, PayloadsOfManySizes) {
  const std::vector<int64_t> sizes = {0, 1, 7, 8, 64, 4096, 12287, 12288, 12289, 24576, 24577, 100'000, 3, 0, 1'000'003, 1};
  EXPECT_EQ(first_error(run_engine(engine(), size(), {}, [&](Group& group) { return exchange_sizes(group, sizes); })), "");
}

TEST_P(ExchangeTest, ThousandsOfRoundsStayInStep) {
  auto body = [](Group& group) -> Status {
    for (int64_t step = 0; step < 2000; ++step) {
      if (step % 3 == 0) PLAIT_RETURN_IF_ERROR(group.barrier("step"));
      const int64_t mine = step * 1000 + group.rank();
      PLAIT_ASSIGN_OR_RETURN(const Exchange exchange, group.exchange("step", std::as_bytes(std::span(&mine, 1))));
      for (int peer = 0; peer < group.size(); ++peer) {
        int64_t theirs = -1;
        std::memcpy(&theirs, exchange.payload(peer).data(), sizeof(theirs));
        if (theirs != step * 1000 + peer) return wrong("step " + std::to_string(step) + " brought " + std::to_string(theirs));
      }
    }
    return {};
  };
  EXPECT_EQ(first_error(run_engine(engine(), size(), {}, body)), "");
}

TEST_P(ExchangeTest, IdentityOfTheGroup) {
  const GroupOptions options{12.5, 3};
  auto body = [&](Group& group) -> Status {
    if (group.size() != size() || group.engine() != engine()) return wrong("size or engine");
    if (group.options().timeout_s != 12.5 || group.options().spin_us != 3) return wrong("options");
    const int mine = group.rank();
    PLAIT_ASSIGN_OR_RETURN(const Exchange exchange, group.exchange("rank", std::as_bytes(std::span(&mine, 1))));
    for (int peer = 0; peer < group.size(); ++peer) {
      if (!group.addressable(peer)) return wrong("addressable");
      if (static_cast<int>(exchange.payload(peer)[0]) != peer) return wrong("rank order");
    }
    if (group.addressable(-1) || group.addressable(group.size())) return wrong("addressable beyond the group");
    return group.health();
  };
  EXPECT_EQ(first_error(run_engine(engine(), size(), options, body)), "");
}

TEST(ExchangeRoundsTest, TinySlotsTakeManyRounds) {
  const std::vector<int64_t> sizes = {0, 15, 16, 17, 33, 1000};
  auto groups = comm::threads::make_groups(3, {}, 16);
  ASSERT_TRUE(groups.ok()) << groups.status().to_string();
  std::vector<std::thread> threads;
  std::vector<Status> statuses(3);
  for (size_t rank = 0; rank < 3; ++rank) threads.emplace_back([&, rank] { statuses[rank] = exchange_sizes(*(*groups)[rank], sizes); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(first_error(statuses), "");
}

TEST(ThreadGroupsTest, ImpossibleSizesAreErrors) {
  for (int size : {0, -1, 1'000'000}) {
    auto groups = make_thread_groups(size);
    ASSERT_FALSE(groups.ok());
    EXPECT_EQ(groups.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(groups.status().message().find(std::to_string(size)), std::string::npos) << groups.status().message();
  }
}

}  // namespace
}  // namespace plait::test
