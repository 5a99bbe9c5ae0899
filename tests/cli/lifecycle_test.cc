// Ranks as processes: signals, deaths, other launchers, few CPUs. Nothing may be left behind, and nobody else may be hurt.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/failure.h"
#include "cli/process.h"

namespace plait {
namespace {

using nlohmann::json;
using test::Process;
using test::RunResult;
using Arguments = std::vector<std::string>;

constexpr double all_gone_s = 5;  // what a user may expect after Ctrl-C

// A run that goes on until somebody ends it.
Arguments endless(int ranks, Arguments more = {}) {
  Arguments arguments = {test::program(), "run", "--model", "tiny", "--tokens", "64", "--rounds", "100000000", "--ranks", std::to_string(ranks)};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

Arguments brief(Arguments more) {
  Arguments arguments = {test::program(), "run", "--model", "tiny", "--tokens", "8", "--rounds", "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

void expect_all_gone(const std::vector<pid_t>& ranks) {
  for (pid_t rank : ranks) {
    if (test::gone_within(rank, all_gone_s)) continue;
    ADD_FAILURE() << "rank process " << rank << " is left";
    ::kill(rank, SIGKILL);
  }
}

TEST(Interrupt, SigintAndSigtermToTheLauncherEndAllRanks) {
  for (int number : {SIGINT, SIGTERM}) {
    test::TemporaryFolder folder;
    Process launcher(endless(4, {"--json", folder / "r.json"}));
    std::vector<pid_t> ranks = launcher.busy_children(4);
    ASSERT_EQ(ranks.size(), 4U);
    launcher.signal(number);
    expect_all_gone(ranks);
    RunResult result = launcher.wait(all_gone_s);
    EXPECT_EQ(result.exit_code, 130);
    EXPECT_EQ(result.err, "plait run: interrupted\n");
    if (!folder.names().empty()) {
      EXPECT_EQ(folder.names(), std::vector<std::string>{"r.json"});
      EXPECT_EQ(json::parse(test::read_file(folder / "r.json"))["interrupted"], true);
    }
  }
}

TEST(Interrupt, ASecondSignalKillsAtOnce) {
  Process launcher(endless(2));
  std::vector<pid_t> ranks = launcher.busy_children(2);
  ASSERT_EQ(ranks.size(), 2U);
  for (pid_t rank : ranks) ASSERT_TRUE(test::stops_within(rank, 30));  // they cannot end by themselves
  launcher.signal(SIGINT);
  ASSERT_TRUE(test::holds_within(30, [&] {
    std::string status = test::read_file("/proc/" + std::to_string(ranks[0]) + "/status");
    return status.find("ShdPnd:\t0000000000000002") != std::string::npos;
  })) << "the first signal is forwarded";
  launcher.signal(SIGINT);
  RunResult result = launcher.wait(3);
  EXPECT_EQ(result.exit_code, 130);
  expect_all_gone(ranks);
}

TEST(Interrupt, RanksThatDoNotReactAreKilledInTime) {
  Process launcher(endless(2));
  std::vector<pid_t> ranks = launcher.busy_children(2);
  ASSERT_EQ(ranks.size(), 2U);
  for (pid_t rank : ranks) ASSERT_TRUE(test::stops_within(rank, 30));
  launcher.signal(SIGINT);
  EXPECT_EQ(launcher.wait(all_gone_s).exit_code, 130);
  expect_all_gone(ranks);
}

TEST(Interrupt, ThreadsEngineEndsToo) {
  Process run(endless(2, {"--engine", "threads"}));
  ASSERT_TRUE(test::holds_within(60, [&] {
    std::string stat = test::read_file("/proc/" + std::to_string(run.pid()) + "/status");
    return stat.find("Threads:\t3") != std::string::npos || stat.find("Threads:\t4") != std::string::npos ||
           stat.find("Threads:\t5") != std::string::npos;
  }));
  run.signal(SIGINT);
  EXPECT_EQ(run.wait(all_gone_s + 1).exit_code, 130);
}

TEST(Death, OfARankIsNamedOnce) {
  Process launcher(endless(4));
  std::vector<pid_t> ranks = launcher.busy_children(4);
  ASSERT_EQ(ranks.size(), 4U);
  auto is_rank_2 = [](pid_t pid) { return test::read_file("/proc/" + std::to_string(pid) + "/environ").find("PLAIT_RANK=2") != std::string::npos; };
  auto victim = std::find_if(ranks.begin(), ranks.end(), is_rank_2);
  ASSERT_NE(victim, ranks.end());
  ::kill(*victim, SIGKILL);
  RunResult result = launcher.wait(60);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_NE(result.err.find("rank 2 of 4 was killed by signal 9 (SIGKILL)"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("error:"), result.err.rfind("error:")) << "one message: " << result.err;
  EXPECT_EQ(result.out, "");
  expect_all_gone(ranks);
}

TEST(Death, OfTheLauncherTakesTheRanksAlong) {
  Process launcher(endless(4));
  std::vector<pid_t> ranks = launcher.busy_children(4);
  ASSERT_EQ(ranks.size(), 4U);
  launcher.signal(SIGKILL);
  expect_all_gone(ranks);
}

TEST(Death, UnrelatedChildrenLiveOn) {
  // The shell becomes the launcher, so the sleeping child is one that the launcher did not start.
  std::string script = "sleep 1000 & exec \"$0\" \"$@\"";
  Arguments command = {"/bin/sh", "-c", script};
  Arguments run = endless(2);
  command.insert(command.end(), run.begin(), run.end());
  Process launcher(command);
  ASSERT_TRUE(test::holds_within(60, [&] { return launcher.children().size() == 3; }));
  std::vector<pid_t> children = launcher.children();
  auto stranger = std::find_if(children.begin(), children.end(),
                               [](pid_t child) { return test::read_file("/proc/" + std::to_string(child) + "/comm") == "sleep\n"; });
  ASSERT_NE(stranger, children.end());
  pid_t sleeping = *stranger;
  children.erase(stranger);
  launcher.signal(SIGINT);
  expect_all_gone(children);
  ASSERT_TRUE(test::gone_within(launcher.pid(), all_gone_s));
  EXPECT_EQ(::kill(sleeping, 0), 0) << "it was not ours to end";
  ::kill(sleeping, SIGKILL);
  EXPECT_EQ(launcher.wait().exit_code, 130);
}

TEST(OtherLaunchers, HandStartedRanksMeet) {
  auto environment = [](int rank) {
    return test::RunSettings{.environment = {{"RANK", std::to_string(rank)},
                                             {"WORLD_SIZE", "2"},
                                             {"LOCAL_RANK", std::to_string(rank)},
                                             {"LOCAL_WORLD_SIZE", "2"},
                                             {"MASTER_ADDR", "127.0.0.1"},
                                             {"MASTER_PORT", std::to_string(::getpid())}},
                             .folder = ""};
  };
  test::TemporaryFolder folder;
  Process second(brief({}), environment(1));
  Process first(brief({"--json", folder / "r.json"}), environment(0));
  RunResult results[2] = {first.wait(), second.wait()};
  EXPECT_EQ(results[0].exit_code, 0) << results[0].err;
  EXPECT_EQ(results[1].exit_code, 0) << results[1].err;
  EXPECT_NE(results[0].out, "");
  EXPECT_EQ(results[1].out, "") << "only rank 0 shows the result";
  EXPECT_EQ(json::parse(test::read_file(folder / "r.json"))["case"]["ranks"], 2) << "the launcher says how many there are";
}

TEST(OtherLaunchers, ContradictionsAreBadInput) {
  test::RunSettings one_of_two{.environment = {{"RANK", "0"}, {"WORLD_SIZE", "2"}}, .folder = ""};
  RunResult result = Process(brief({"--ranks", "4"}), one_of_two).wait();
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("--ranks 4, but torchrun started 2 ranks"), std::string::npos) << result.err;
  result = Process(brief({"--engine", "threads"}), one_of_two).wait();
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("take --engine shm"), std::string::npos) << result.err;
  result =
      Process(brief({}), {.environment = {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}}, .folder = ""}).wait();
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("4 ranks, 2 of them on this machine"), std::string::npos) << result.err;
  result = Process(brief({}), {.environment = {{"RANK", "0"}}, .folder = ""}).wait();
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("WORLD_SIZE"), std::string::npos) << result.err;
}

TEST(OtherLaunchers, ARankThatDoesNotComeIsNamed) {
  RunResult result =
      Process(brief({}), {.environment = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}, {"PLAIT_TIMEOUT", "1"}}, .folder = ""}).wait();
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_NE(result.err.find("timeout"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("1"), std::string::npos) << result.err;
}

TEST(FewCpus, OneUsableCpuIsEnoughForTwoRanks) {
  cpu_set_t allowed;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &allowed)) ++cpu;
  auto on_one_cpu = [cpu](Arguments command) {
    command.insert(command.begin(), {"taskset", "-c", std::to_string(cpu)});
    return Process(command).wait();
  };
  RunResult info = on_one_cpu({test::program(), "info", "--json", "-"});
  ASSERT_EQ(info.exit_code, 0) << info.err;
  EXPECT_EQ(json::parse(info.out)["machine"]["usable_cpus"], 1);
  for (Arguments more : {Arguments{}, Arguments{"--threads", "8"}, Arguments{"--engine", "threads"}}) {
    more.insert(more.end(), {"--ranks", "2", "--json", "-"});
    RunResult result = on_one_cpu(brief(more));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    json report = json::parse(result.out);
    EXPECT_EQ(report["case"]["threads"], more[0] == "--threads" ? 8 : 1);
    EXPECT_EQ(report["compare"][0]["bitwise_equal"], true);
  }
}

TEST(FewCpus, ThreadsOfALauncherForOthersAreNotOurs) {
  RunResult result =
      Process(brief({"--ranks", "1", "--json", "-"}), {.environment = {{"OMP_NUM_THREADS", "1"}, {"PLAIT_THREADS", "3"}}, .folder = ""}).wait();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["case"]["threads"], 3);
}

TEST(Failures, TheFirstCauseIsWhatExplainsTheOthers) {
  using cli::RankFailure;
  std::vector<RankFailure> failures = {{0, 0, StatusCode::aborted, "aborted: rank 1: out of memory", 3},
                                       {2, 0, StatusCode::peer_lost, "peer lost: rank 1", 3},
                                       {1, 0, StatusCode::resource_exhausted, "resource exhausted: 5 bytes", 3}};
  EXPECT_EQ(cli::first_cause(failures), 2U);
  EXPECT_EQ(cli::summary(failures, 4), "rank 1 of 4 failed: resource exhausted: 5 bytes\n  The other ranks were stopped.");
  failures.push_back({3, SIGSEGV, StatusCode::internal, "", 0});
  EXPECT_EQ(cli::summary(failures, 4), "rank 3 of 4 was killed by signal 11 (SIGSEGV)\n  The other ranks were stopped.");
  EXPECT_EQ(cli::summary({{0, 0, StatusCode::internal, "", 127}}, 1), "rank 0 of 1 ended with exit code 127 and no message");
  std::vector<RankFailure> alike = {{0, 0, StatusCode::invalid_argument, "invalid argument: x", 2},
                                    {1, 0, StatusCode::invalid_argument, "invalid argument: x", 2}};
  EXPECT_EQ(cli::summary(alike, 2), "invalid argument: x");
}

TEST(Failures, TravelThroughAPipe) {
  cli::RankFailure back;
  EXPECT_TRUE(cli::decode_failure(cli::encode_failure(Status::timeout("two\nlines")), back));
  EXPECT_EQ(back.code, StatusCode::timeout);
  EXPECT_EQ(back.text, "timeout: two\nlines");
  EXPECT_FALSE(cli::decode_failure("", back));
  EXPECT_FALSE(cli::decode_failure("noise\n", back));
  EXPECT_LE(cli::encode_failure(Status::timeout(std::string(1 << 20, 'x'))).size(), 65536U);
}

}  // namespace
}  // namespace plait
