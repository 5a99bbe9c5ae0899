// How processes meet, and what happens when the wrong ones come, too many, too few, or none.

#include <dirent.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "base/status_macros.h"
#include "comm/deadline.h"
#include "comm/shm/handshake.h"
#include "comm/shm/join.h"
#include "engines.h"

namespace plait::test {
namespace {

using comm::shm::JoinSettings;

/// One process per entry: rank and size that it claims. Each joins with `options` and, where it succeeds, makes one barrier.
std::vector<Outcome> meet(const std::vector<std::pair<int, int>>& claims, const GroupOptions& options) {
  const std::string job = unique_job();
  Processes processes(static_cast<int>(claims.size()), [&](int index) -> Status {
    const auto [rank, size] = claims[static_cast<size_t>(index)];
    PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Group> group, join_shm_group(rank, size, job, "ep", options));
    return group->barrier("met");
  });
  return processes.wait(60);
}

void expect_all(const std::vector<Outcome>& outcomes, StatusCode code, const std::vector<std::string>& parts) {
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.exited) << outcome.to_string();
    EXPECT_EQ(outcome.status.code(), code) << outcome.to_string();
    EXPECT_EQ(outcome.status.stage(), "join") << outcome.to_string();
    for (const std::string& part : parts)
      EXPECT_NE(outcome.status.message().find(part), std::string::npos) << part << " is not in " << outcome.to_string();
  }
}

TEST(RendezvousTest, AnotherSizeIsNamedOnAllRanks) {
  expect_all(meet({{0, 3}, {1, 4}, {2, 3}}, {}), StatusCode::invalid_argument, {"rank 1 (process", "has 4 ranks, rank 0 says 3", "group 'ep'"});
}

TEST(RendezvousTest, ARankThatComesTwiceIsNamedOnAllRanks) {
  expect_all(meet({{0, 4}, {1, 4}, {2, 4}, {2, 4}}, {}), StatusCode::invalid_argument, {"both say that they are rank 2"});
}

TEST(RendezvousTest, ARankThatDoesNotComeIsNamed) {
  const std::vector<Outcome> outcomes = meet({{0, 4}, {2, 4}}, {0.5, 20});
  expect_all(outcomes, StatusCode::timeout, {"ranks 1, 3 of group 'ep'", "0.5 s"});
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.status.rank(), 1);
}

TEST(RendezvousTest, WithoutRank0TheOthersSaySo) {
  for (const Outcome& outcome : meet({{1, 3}, {2, 3}}, {0.3, 20})) {
    EXPECT_EQ(outcome.status.code(), StatusCode::timeout);
    EXPECT_EQ(outcome.status.rank(), 0);
    EXPECT_NE(outcome.status.message().find("rank 0 of group 'ep'"), std::string::npos) << outcome.to_string();
    EXPECT_EQ(outcome.status.message().find("a complete group"), std::string::npos) << outcome.to_string();
  }
}

TEST(RendezvousTest, ImpossibleArgumentsAreErrors) {
  for (const auto& [rank, size] : std::vector<std::pair<int, int>>{{0, 0}, {-1, 2}, {2, 2}, {0, 100'000}}) {
    EXPECT_EQ(join_shm_group(rank, size, "j", "g").status().code(), StatusCode::invalid_argument) << rank << " of " << size;
  }
  EXPECT_EQ(join_shm_group(0, 1, std::string(200, 'j'), "g").status().code(), StatusCode::invalid_argument);
}

TEST(RendezvousTest, ASecondJobOfTheNameIsRefusedWhileTheFirstLives) {
  const std::string job = unique_job();
  auto first = join_shm_group(0, 1, job, "ep");
  ASSERT_TRUE(first.ok());
  const JoinSettings settings{comm::shm::Backing::memfd, 0.1};
  const auto second = comm::shm::join(0, 2, job, "ep", {}, settings);
  EXPECT_EQ(second.status().code(), StatusCode::unavailable);
  EXPECT_NE(second.status().message().find("group 'ep' of job '" + job + "' exists on this machine already"), std::string::npos)
      << second.status().message();
  const auto guest = join_shm_group(1, 2, job, "ep", {0.2, 20});
  EXPECT_NE(guest.status().message().find("a complete group of this name runs"), std::string::npos) << guest.status().message();
  EXPECT_TRUE(join_shm_group(0, 1, job, "other").ok());
  EXPECT_TRUE((*first)->barrier("undisturbed").ok());
  *first = nullptr;
  EXPECT_TRUE(join_shm_group(0, 1, job, "ep").ok());
}

TEST(RendezvousTest, StrangersGetNothingAndDisturbNothing) {
  const std::string job = unique_job();
  comm::shm::Meeting meeting;
  meeting.job = job;
  meeting.group = "ep";
  const SharedCounter stranger_was_there;
  const SharedCounter formed;
  const SharedCounter stranger_left;
  Processes processes(2, [&](int rank) -> Status {
    if (rank == 1 && !stranger_was_there.wait_for(1)) return wrong("no stranger");
    PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Group> group, join_shm_group(rank, 2, job, "ep"));
    formed.add();
    if (!stranger_left.wait_for(1)) return wrong("no late stranger");
    return group->barrier("undisturbed");
  });
  auto connect = [&](comm::shm::UniqueFd& socket) { return comm::shm::connect_name(comm::shm::name_of_listener(meeting), socket); };
  comm::shm::UniqueFd silent;
  comm::shm::UniqueFd loud;
  const int64_t deadline = comm::deadline_after(30);
  while (connect(silent) != 0 && now_ns() < deadline) poll(nullptr, 0, 1);
  ASSERT_EQ(connect(loud), 0);
  const std::array<std::byte, 3> garbage{};
  ASSERT_EQ(comm::shm::send_message(loud.get(), garbage, {}, deadline), 0);
  stranger_was_there.add();
  ASSERT_TRUE(formed.wait_for(2));
  std::vector<comm::shm::UniqueFd> descriptors;
  for (comm::shm::UniqueFd* socket : {&silent, &loud}) {
    comm::shm::Welcome welcome{};
    EXPECT_EQ(comm::shm::receive_message(socket->get(), comm::shm::writable_bytes_of(welcome), descriptors, deadline), ECONNRESET);
    EXPECT_TRUE(descriptors.empty());
  }
  comm::shm::UniqueFd late;
  EXPECT_EQ(connect(late), ECONNREFUSED);
  stranger_left.add();
  for (const Outcome& outcome : processes.wait()) EXPECT_EQ(outcome.to_string(), "ok");
}

/// Needs the right to become another user.
TEST(RendezvousTest, OtherUsersAreStrangersOnBothSides) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  constexpr uid_t other_user = 65534;
  const std::string job = unique_job();
  comm::shm::Meeting meeting;
  meeting.job = job;
  meeting.group = "ep";
  meeting.rank = 1;
  meeting.size = 2;
  const std::string listener = comm::shm::name_of_listener(meeting);
  const SharedCounter refused;
  Processes processes(3, [&](int index) -> Status {
    if (index < 2) {  // the real ranks 0 and 1; 1 waits until the other user has tried to take its place
      if (index == 1 && !refused.wait_for(1)) return wrong("the other user was not refused");
      PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Group> group, join_shm_group(index, 2, job, "ep"));
      return group->barrier("undisturbed");
    }
    if (setuid(other_user) != 0) return wrong("setuid");
    comm::shm::UniqueFd socket;
    const int64_t deadline = comm::deadline_after(30);
    while (comm::shm::connect_name(listener, socket) != 0 && now_ns() < deadline) poll(nullptr, 0, 1);
    comm::shm::send_message(socket.get(), comm::shm::bytes_of(comm::shm::make_hello(meeting)), {}, deadline);
    comm::shm::Welcome welcome{};
    std::vector<comm::shm::UniqueFd> descriptors;
    const int error = comm::shm::receive_message(socket.get(), comm::shm::writable_bytes_of(welcome), descriptors, deadline);
    refused.add();
    return error == ECONNRESET ? Status() : wrong("heard something");
  });
  for (const Outcome& outcome : processes.wait()) EXPECT_EQ(outcome.to_string(), "ok");

  const SharedCounter squatting;
  Processes squatted(2, [&](int index) -> Status {
    if (index == 0) {
      comm::shm::UniqueFd socket;
      if (setuid(other_user) != 0 || comm::shm::bind_name(listener, socket) != 0 || listen(socket.get(), 4) != 0) return wrong("bind");
      squatting.add();
      squatting.wait_for(2);
      return {};
    }
    if (!squatting.wait_for(1)) return wrong("nobody listens");
    const Status status = join_shm_group(1, 2, job, "ep").status();
    squatting.add();
    return status.message().find("is held by user 65534") != std::string::npos ? Status() : wrong(status.to_string());
  });
  for (const Outcome& outcome : squatted.wait()) EXPECT_EQ(outcome.to_string(), "ok");
}

int count_descriptors() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

TEST(RendezvousTest, ManyGroupsInTurnLeaveNoDescriptor) {
  const std::string job = unique_job();
  Processes processes(3, [&](int rank) -> Status {
    const int before = count_descriptors();
    for (int repeat = 0; repeat < 30; ++repeat) {
      PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Group> group, join_shm_group(rank, 3, job, "g"));
      PLAIT_ASSIGN_OR_RETURN(const Region region, group->allocate(1000));
      PLAIT_RETURN_IF_ERROR(group->exchange("x", {}, {&region, 1}).status());
      const int during = count_descriptors();
      if (during > before + 2 * 3 + 2) return wrong(std::to_string(during - before) + " descriptors for a group of 3");
    }
    const int after = count_descriptors();
    return after == before ? Status() : wrong(std::to_string(after - before) + " descriptors remain");
  });
  for (const Outcome& outcome : processes.wait()) EXPECT_EQ(outcome.to_string(), "ok");
}

TEST(RendezvousTest, TwoJobsAtOnceDoNotMeet) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    const std::array<std::string, 2> jobs = {unique_job(), unique_job()};
    Processes processes(6, [&](int index) -> Status {
      const int job = index % 2;
      const int rank = index / 2;
      PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Group> group, join_shm_group(rank, 3, jobs[static_cast<size_t>(job)], "g"));
      for (int step = 0; step < 20; ++step) {
        PLAIT_ASSIGN_OR_RETURN(const Region region, group->allocate(100));
        std::fill_n(region.data(), 100, static_cast<std::byte>(10 * job + rank));
        PLAIT_ASSIGN_OR_RETURN(const Exchange exchange, group->exchange("x", {}, {&region, 1}));
        for (int peer = 0; peer < 3; ++peer) {
          if (exchange.regions[0][static_cast<size_t>(peer)].data()[99] != static_cast<std::byte>(10 * job + peer)) return wrong("met the other job");
        }
      }
      return {};
    });
    for (const Outcome& outcome : processes.wait()) ASSERT_EQ(outcome.to_string(), "ok");
  }
}

}  // namespace
}  // namespace plait::test
