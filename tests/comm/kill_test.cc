// kill -9 of a rank at any moment: the others return an error that names it, long before the time-out; nothing is left behind.

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "base/status_macros.h"
#include "comm/shm/join.h"
#include "engines.h"
#include "support/leftovers.h"
#include "support/test_tensors.h"

namespace plait::test {
namespace {

/// A life of steps as a layer makes them; ends only by an error.
Status work(Group& group, const SharedCounter& started) {
  Random random(static_cast<uint64_t>(group.rank()));
  std::vector<Exchange> alive;
  started.add();
  for (uint64_t step = 1;; ++step) {
    PLAIT_ASSIGN_OR_RETURN(const Region region, group.allocate(1 + random.below(100'000)));
    region.data()[0] = static_cast<std::byte>(step);
    const std::vector<std::byte> payload(static_cast<size_t>(step % 4 * 9000));
    PLAIT_ASSIGN_OR_RETURN(Exchange exchange, group.exchange("counts", payload, {&region, 1}));
    for (const RegionView& view : exchange.regions[0]) {
      if (view.data()[0] != static_cast<std::byte>(step)) return wrong("content");
    }
    alive.push_back(std::move(exchange));
    if (alive.size() > 3) alive.erase(alive.begin());
    PLAIT_RETURN_IF_ERROR(group.signal(0, step));
    for (int peer = 0; peer < group.size(); ++peer) PLAIT_RETURN_IF_ERROR(group.wait(peer, 0, step, "rows"));
    PLAIT_RETURN_IF_ERROR(group.barrier("combine"));
  }
}

/// The survivors' errors must name the victim. They have far less time than the group's time-out of 60 s.
void expect_named(Processes& processes, int size, int victim, const std::string& what) {
  const std::vector<Outcome> outcomes = processes.wait(30);
  for (int rank = 0; rank < size; ++rank) {
    const Outcome& outcome = outcomes[static_cast<size_t>(rank)];
    if (rank == victim) {
      EXPECT_EQ(outcome.signal, SIGKILL) << what;
      continue;
    }
    EXPECT_TRUE(outcome.exited) << what << ", rank " << rank << ": " << outcome.to_string();
    EXPECT_EQ(outcome.status.code(), StatusCode::peer_lost) << what << ": " << outcome.to_string();
    EXPECT_EQ(outcome.status.rank(), victim) << what << ": " << outcome.to_string();
    EXPECT_NE(outcome.status.stage(), "") << what << ": " << outcome.to_string();
  }
}

TEST(KillTest, AtRandomMomentsOfTheWork) {
  const char* full = std::getenv("PLAIT_TEST_FULL");
  const int num_points = full != nullptr && std::string(full) == "1" ? 200 : 20;
  Random random(2024);
  const int shared_before = count_shared_files();
  for (int point = 0; point < num_points; ++point) {
    const int size = 2 + static_cast<int>(random.below(3));
    const int victim = static_cast<int>(random.below(size));
    const int64_t delay_us = random.below(20'000);
    const std::string job = unique_job();
    const SharedCounter started;
    Processes processes(size, [&](int rank) -> Status {
      PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Group> group, join_shm_group(rank, size, job, "g"));
      return work(*group, started);
    });
    ASSERT_TRUE(started.wait_for(size));
    pause_us(delay_us);
    processes.kill(victim);
    expect_named(processes, size, victim, "point " + std::to_string(point));
    EXPECT_FALSE(name_in_use(job, "g"));
  }
  EXPECT_EQ(count_shared_files(), shared_before);
}

TEST(KillTest, WhileTheGroupForms) {
  for (int victim = 0; victim < 3; ++victim) {
    const std::string job = unique_job();
    const SharedCounter started;
    Processes processes(4, [&](int rank) -> Status {
      started.add();
      if (rank == 3) poll(nullptr, 0, -1);  // never comes, so that the group never forms
      return join_shm_group(rank, 4, job, "g").status();
    });
    ASSERT_TRUE(started.wait_for(4));
    pause_us(30'000);
    processes.kill(victim);
    const std::vector<Outcome> outcomes = [&] {
      pause_us(20'000);
      for (int waited = 0; waited < 300 && processes.num_running() > 1; ++waited) pause_us(100'000);
      processes.kill(3);
      return processes.wait(30);
    }();
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      const Outcome& outcome = outcomes[static_cast<size_t>(rank)];
      EXPECT_EQ(outcome.status.code(), StatusCode::peer_lost) << "victim " << victim << ", rank " << rank << ": " << outcome.to_string();
      EXPECT_EQ(outcome.status.rank(), victim) << outcome.to_string();
      EXPECT_EQ(outcome.status.stage(), "join");
    }
  }
}

TEST(KillTest, AReaderKeepsWhatAKilledOwnerPublished) {
  const std::string job = unique_job();
  const SharedCounter published;
  Processes processes(2, [&](int rank) -> Status {
    PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Group> group, join_shm_group(rank, 2, job, "g"));
    PLAIT_ASSIGN_OR_RETURN(const Region region, group->allocate(3 << 20));
    for (int64_t i = 0; i < region.bytes(); ++i) region.data()[i] = origin(rank, 0, i);
    PLAIT_ASSIGN_OR_RETURN(const Exchange exchange, group->exchange("publish", {}, {&region, 1}));
    published.add();
    while (rank == 1) poll(nullptr, 0, 1000);
    while (group->health().ok()) poll(nullptr, 0, 1);
    PLAIT_RETURN_IF_ERROR(check_origin(exchange.regions[0][1].data(), 3 << 20, 1, 0));
    return group->health();
  });
  ASSERT_TRUE(published.wait_for(2));
  processes.kill(1);
  expect_named(processes, 2, 1, "reader");
}

TEST(KillTest, WithoutPidfdsTheSocketsTell) {
  const std::string job = unique_job();
  const SharedCounter started;
  Processes processes(3, [&](int rank) -> Status {
    comm::shm::JoinSettings settings;
    settings.pidfds = false;
    PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Group> group, comm::shm::join(rank, 3, job, "g", {}, settings));
    return work(*group, started);
  });
  ASSERT_TRUE(started.wait_for(3));
  processes.kill(2);
  expect_named(processes, 3, 2, "no pidfds");
}

TEST(KillTest, AForkedChildOfARankEndsWithoutEffect) {
  const std::string job = unique_job();
  Processes processes(2, [&](int rank) -> Status {
    PLAIT_ASSIGN_OR_RETURN(std::unique_ptr<Group> group, join_shm_group(rank, 2, job, "g"));
    PLAIT_RETURN_IF_ERROR(group->barrier("before"));
    if (rank == 1) {
      const pid_t child = fork();
      if (child == 0) {
        group = nullptr;  // as an interpreter that cleans up would
        _exit(0);
      }
      waitpid(child, nullptr, 0);
      pause_us(60'000);  // some looks of rank 0 at its peers
    }
    return group->barrier("after");
  });
  for (const Outcome& outcome : processes.wait()) EXPECT_EQ(outcome.to_string(), "ok");
}

TEST(KillTest, ADeadRankIsNoticedAlthoughAChildOfItKeepsItsSockets) {
  const std::string job = unique_job();
  const SharedCounter ready;
  const SharedCounter done;
  Processes processes(2, [&](int rank) -> Status {
    PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Group> group, join_shm_group(rank, 2, job, "g"));
    if (rank == 1) {
      if (fork() == 0) {
        ready.add();
        done.wait_for(1);
        _exit(0);
      }
      poll(nullptr, 0, -1);
    }
    return group->barrier("before");
  });
  ASSERT_TRUE(ready.wait_for(1));
  pause_us(50'000);
  processes.kill(1);
  expect_named(processes, 2, 1, "child of the victim");
  done.add();
}

TEST(KillTest, AllRanksThenRestartAtOnceWithAnotherSize) {
  const std::string job = unique_job();  // the same name for all
  const int shared_before = count_shared_files();
  for (int repeat = 0; repeat < 20; ++repeat) {
    const int size = 1 + repeat % 4;
    const SharedCounter started;
    Processes killed(size, [&](int rank) -> Status {
      PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Group> group, join_shm_group(rank, size, job, "g"));
      return work(*group, started);
    });
    ASSERT_TRUE(started.wait_for(size));
    for (int rank = 0; rank < size; ++rank) killed.kill(rank);
    Processes next(size + 1, [&](int rank) -> Status {  // while the killed ones may still be ending
      PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Group> group, join_shm_group(rank, size + 1, job, "g"));
      return group->barrier("works");
    });
    for (const Outcome& outcome : next.wait()) EXPECT_EQ(outcome.to_string(), "ok");
    // One whose turn came late may have noticed the death of another before.
    for (const Outcome& outcome : killed.wait()) EXPECT_NE(outcome.to_string(), "ok");
  }
  EXPECT_FALSE(name_in_use(job, "g"));
  EXPECT_EQ(count_shared_files(), shared_before);
}

}  // namespace
}  // namespace plait::test
