// Too little memory is an error with the need and the limit, and the process lives on.

#include <sys/resource.h>
#include <sys/wait.h>

#include <unistd.h>

#include <csignal>
#include <fstream>

#include "base/status_macros.h"
#include "comm/shm/join.h"
#include "engines.h"

namespace plait::test {
namespace {

Status use_window(Group& group, int64_t bytes) {
  PLAIT_ASSIGN_OR_RETURN(const Region region, group.allocate(bytes));
  for (int64_t i = 0; i < bytes; i += 4096) region.data()[i] = static_cast<std::byte>(group.rank() + 1);
  PLAIT_ASSIGN_OR_RETURN(const Exchange exchange, group.exchange("publish", {}, {&region, 1}));
  for (int peer = 0; peer < group.size(); ++peer) {
    if (exchange.regions[0][static_cast<size_t>(peer)].data()[0] != static_cast<std::byte>(peer + 1)) return wrong("content");
  }
  return group.barrier("read");
}

TEST(MemoryLimitTest, AFileSizeLimitIsAnErrorAndNoSignal) {
  const std::string job = unique_job();
  Processes processes(2, [&](int rank) -> Status {
    const rlimit limit{4 << 20, 4 << 20};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return wrong("setrlimit");
    PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Group> group, join_shm_group(rank, 2, job, "g"));
    const Result<Region> region = group->allocate(5 << 20);
    if (region.ok()) return wrong("granted");
    const Status& status = region.status();
    if (status.code() != StatusCode::resource_exhausted || status.rank() != rank || status.stage() != "allocate") return wrong(status.to_string());
    for (const char* part : {"5242880", "4.0 MiB", "RLIMIT_FSIZE"}) {
      if (status.message().find(part) == std::string::npos) return wrong(std::string(part) + " is not in " + status.to_string());
    }
    sigset_t pending;
    sigpending(&pending);
    if (sigismember(&pending, SIGXFSZ) != 0) return wrong("a signal is pending");
    return use_window(*group, (4 << 20) - 1000);  // the limit can be used to its end
  });
  for (const Outcome& outcome : processes.wait()) EXPECT_EQ(outcome.to_string(), "ok");
}

int64_t address_space_bytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

TEST(MemoryLimitTest, AnAddressSpaceLimitIsAnError) {
  for (Engine engine : {Engine::threads, Engine::shm}) {
    Processes processes(1, [&](int) -> Status {
      auto body = [](Group& group) -> Status {
        rlimit limit{};
        getrlimit(RLIMIT_AS, &limit);
        limit.rlim_cur = static_cast<rlim_t>(address_space_bytes() + (64 << 20));
        if (setrlimit(RLIMIT_AS, &limit) != 0) return wrong("setrlimit");
        const Result<Region> region = group.allocate(256 << 20);
        if (region.ok() || region.status().code() != StatusCode::resource_exhausted) return wrong("granted");
        return use_window(group, 1 << 20);
      };
      if (engine == Engine::threads) return run_ranks(1, {}, body)[0];
      PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Group> group, join_shm_group(0, 1, unique_job(), "g"));
      return body(*group);
    });
    EXPECT_EQ(processes.wait()[0].to_string(), "ok") << name(engine);
  }
}

TEST(MemoryLimitTest, WithoutMemfdUnnamedFilesServe) {
  const std::string job = unique_job();
  Processes processes(3, [&](int rank) -> Status {
    const comm::shm::JoinSettings settings{comm::shm::Backing::unnamed_file};
    PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Group> group, comm::shm::join(rank, 3, job, "g", {}, settings));
    for (int64_t bytes : {100, 1 << 20, 3 << 20}) PLAIT_RETURN_IF_ERROR(use_window(*group, bytes));
    return {};
  });
  for (const Outcome& outcome : processes.wait()) EXPECT_EQ(outcome.to_string(), "ok");
}

}  // namespace
}  // namespace plait::test
