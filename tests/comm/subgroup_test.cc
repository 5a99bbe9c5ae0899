// Several groups at once: sub-groups in any order of their ranks, side by side in one process or in several, without mixing anything up.

#include <array>
#include <cstring>
#include <thread>

#include "base/status_macros.h"
#include "engines.h"

namespace plait::test {
namespace {

/// World ranks 0 to 3 in groups {0, 2} and {3, 1}, in that order of ranks.
struct Place {
  const char* group;
  int rank;
};
constexpr std::array<Place, 4> places = {Place{"ep0", 0}, Place{"ep1", 1}, Place{"ep0", 1}, Place{"ep1", 0}};
constexpr std::array<std::array<int, 2>, 2> members = {std::array<int, 2>{0, 2}, std::array<int, 2>{3, 1}};

/// Every rank sends its world rank; what arrives must come from the group's members in the group's order.
Status talk(Group& group, int world_rank, int steps) {
  const std::array<int, 2>& expected = members[static_cast<size_t>(places[static_cast<size_t>(world_rank)].group[2] - '0')];
  for (int step = 0; step < steps; ++step) {
    PLAIT_ASSIGN_OR_RETURN(const Region region, group.allocate(64 * (1 + world_rank)));
    std::memcpy(region.data(), &world_rank, sizeof(int));
    PLAIT_ASSIGN_OR_RETURN(const Exchange exchange, group.exchange("rows", std::as_bytes(std::span(&world_rank, 1)), {&region, 1}));
    for (int peer = 0; peer < 2; ++peer) {
      int sent = -1;
      int row = -1;
      std::memcpy(&sent, exchange.payload(peer).data(), sizeof(int));
      std::memcpy(&row, exchange.regions[0][static_cast<size_t>(peer)].data(), sizeof(int));
      if (sent != expected[static_cast<size_t>(peer)] || row != sent) return wrong("step " + std::to_string(step) + ": " + std::to_string(sent));
    }
  }
  return group.barrier("end");
}

TEST(SubgroupTest, TwoShmGroupsInAnyRankOrderRunAtOnce) {
  const std::string job = unique_job();
  Processes processes(4, [&](int world_rank) -> Status {
    const Place& place = places[static_cast<size_t>(world_rank)];
    PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Group> world, join_shm_group(world_rank, 4, job, "world"));
    for (int repeat = 0; repeat < 10; ++repeat) {
      PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Group> group, join_shm_group(place.rank, 2, job, place.group));
      PLAIT_RETURN_IF_ERROR(talk(*group, world_rank, 10));
      PLAIT_RETURN_IF_ERROR(world->barrier("step"));
    }
    return {};
  });
  for (const Outcome& outcome : processes.wait()) EXPECT_EQ(outcome.to_string(), "ok");
}

TEST(SubgroupTest, TwoThreadGroupsRunAtOnce) {
  auto even = make_thread_groups(2);
  auto odd = make_thread_groups(2);
  ASSERT_TRUE(even.ok() && odd.ok());
  std::vector<Status> statuses(4);
  std::vector<std::thread> threads;
  for (int world_rank = 0; world_rank < 4; ++world_rank) {
    threads.emplace_back([&, world_rank] {
      const Place& place = places[static_cast<size_t>(world_rank)];
      auto& groups = place.group[2] == '0' ? *even : *odd;
      statuses[static_cast<size_t>(world_rank)] = talk(*groups[static_cast<size_t>(place.rank)], world_rank, 100);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(first_error(statuses), "");
}

TEST(SubgroupTest, RanksOfAShmGroupMayBeThreadsOfOneProcess) {
  const std::string job = unique_job();
  std::vector<Status> statuses(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      statuses[static_cast<size_t>(rank)] = [&]() -> Status {
        PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Group> group, join_shm_group(rank, 3, job, "g"));
        PLAIT_ASSIGN_OR_RETURN(const Region region, group->allocate(100));
        region.data()[0] = static_cast<std::byte>(rank);
        PLAIT_ASSIGN_OR_RETURN(const Exchange exchange, group->exchange("x", {}, {&region, 1}));
        for (int peer = 0; peer < 3; ++peer) {
          if (exchange.regions[0][static_cast<size_t>(peer)].data()[0] != static_cast<std::byte>(peer)) return wrong("content");
        }
        return group->barrier("end");
      }();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(first_error(statuses), "");
}

TEST(SubgroupTest, AFailureStaysInItsGroup) {
  auto groups = make_thread_groups(1);
  auto others = make_thread_groups(1);
  (*groups)[0]->abort(Status::internal("on purpose"));
  EXPECT_FALSE((*groups)[0]->barrier("x").ok());
  EXPECT_TRUE((*others)[0]->barrier("x").ok());
}

}  // namespace
}  // namespace plait::test
