// detect_launch: the variables of the launchers, and what is wrong with half of them.

#include <cstdlib>
#include <map>
#include <optional>

#include "gtest/gtest.h"
#include "plait/env.h"
#include "plait/group.h"

namespace plait::test {
namespace {

/// Sets variables for a test and clears every other that detect_launch looks at; restores all afterwards.
class Variables {
 public:
  explicit Variables(const std::map<std::string, std::string>& values) {
    for (const char* name : {"PLAIT_RANK",
                             "PLAIT_SIZE",
                             "PLAIT_LOCAL_RANK",
                             "PLAIT_LOCAL_SIZE",
                             "PLAIT_JOB",
                             "RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "TORCHELASTIC_RUN_ID",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "PMIX_NAMESPACE",
                             "OMPI_MCA_orte_ess_jobid",
                             "OMPI_MCA_ess_base_jobid",
                             "OMPI_MCA_orte_hnp_uri",
                             "PMI_JOBID",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "MPI_LOCALRANKID",
                             "MPI_LOCALNRANKS",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "SLURM_LOCALID",
                             "SLURM_NODEID",
                             "SLURM_STEP_TASKS_PER_NODE",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_ID"}) {
      const char* before = std::getenv(name);
      before_[name] = before != nullptr ? std::optional<std::string>(before) : std::nullopt;
      unsetenv(name);
    }
    for (const auto& [name, value] : values) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variables() {
    for (const auto& [name, value] : before_) value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  std::map<std::string, std::optional<std::string>> before_;
};

Launch launch_of(const std::map<std::string, std::string>& values) {
  const Variables variables(values);
  const Result<Launch> launch = detect_launch();
  EXPECT_TRUE(launch.ok()) << launch.status().to_string();
  return launch.ok() ? *launch : Launch();
}
std::string error_of(const std::map<std::string, std::string>& values) {
  const Variables variables(values);
  const Result<Launch> launch = detect_launch();
  EXPECT_FALSE(launch.ok());
  EXPECT_EQ(launch.status().code(), StatusCode::invalid_argument);
  return launch.status().message();
}
void expect_place(const Launch& launch, const std::string& launcher, int rank, int size, int local_rank, int local_size) {
  EXPECT_EQ(launch.launcher, launcher);
  EXPECT_EQ(launch.rank, rank);
  EXPECT_EQ(launch.size, size);
  EXPECT_EQ(launch.local_rank, local_rank);
  EXPECT_EQ(launch.local_size, local_size);
}

TEST(LaunchTest, NobodyLaunchedThisProcess) {
  const Launch launch = launch_of({});
  expect_place(launch, "none", 0, 1, 0, 1);
  EXPECT_NE(launch.job, "");
}

TEST(LaunchTest, Plait) {
  const Launch launch = launch_of({{"PLAIT_RANK", "2"}, {"PLAIT_SIZE", "4"}, {"PLAIT_JOB", "mine"}});
  expect_place(launch, "plait", 2, 4, 2, 4);
  EXPECT_EQ(launch.job, "mine");
}

TEST(LaunchTest, Torchrun) {
  std::map<std::string, std::string> values = {{"RANK", "5"},           {"WORLD_SIZE", "8"},
                                               {"LOCAL_RANK", "1"},     {"LOCAL_WORLD_SIZE", "4"},
                                               {"MASTER_ADDR", "h1"},   {"TORCHELASTIC_RUN_ID", "none"},
                                               {"MASTER_PORT", "29500"}};
  const Launch launch = launch_of(values);
  expect_place(launch, "torchrun", 5, 8, 1, 4);
  values["MASTER_PORT"] = "29501";
  EXPECT_NE(launch.job, launch_of(values).job);
  values["RANK"] = "6";
  values["LOCAL_RANK"] = "2";
  EXPECT_EQ(launch_of(values).job, launch_of(values).job);
}

TEST(LaunchTest, OpenMpi) {
  std::map<std::string, std::string> values = {{"OMPI_COMM_WORLD_RANK", "3"},
                                               {"OMPI_COMM_WORLD_SIZE", "4"},
                                               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                               {"PMIX_NAMESPACE", "1234"}};
  const Launch launch = launch_of(values);
  expect_place(launch, "mpirun", 3, 4, 1, 2);
  values["OMPI_COMM_WORLD_RANK"] = "2";
  EXPECT_EQ(launch.job, launch_of(values).job);
  values["PMIX_NAMESPACE"] = "1235";
  EXPECT_NE(launch.job, launch_of(values).job);
}

TEST(LaunchTest, HydraAndIntelMpi) {
  expect_place(launch_of({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}), "mpirun", 1, 2, 1, 2);
  expect_place(launch_of({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}}), "mpirun", 3, 4, 1, 2);
}

TEST(LaunchTest, Slurm) {
  std::map<std::string, std::string> values = {{"SLURM_PROCID", "9"},
                                               {"SLURM_NTASKS", "11"},
                                               {"SLURM_LOCALID", "1"},
                                               {"SLURM_NODEID", "2"},
                                               {"SLURM_JOB_ID", "77"},
                                               {"SLURM_STEP_ID", "3"},
                                               {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"}};
  const Launch launch = launch_of(values);
  expect_place(launch, "srun", 9, 11, 1, 3);
  EXPECT_EQ(launch.job, "slurm-77.3");
  values["SLURM_NODEID"] = "1";
  expect_place(launch_of(values), "srun", 9, 11, 1, 4);
}

TEST(LaunchTest, ASlurmAllocationWithoutAStepIsNoLaunch) {
  expect_place(launch_of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "77"}}), "none", 0, 1, 0, 1);
}

TEST(LaunchTest, TheFirstLauncherInOrderCounts) {
  const std::map<std::string, std::string> values = {{"PLAIT_RANK", "0"}, {"PLAIT_SIZE", "1"}, {"RANK", "3"},
                                                     {"WORLD_SIZE", "4"}, {"PMI_RANK", "1"},   {"PMI_SIZE", "2"}};
  expect_place(launch_of(values), "plait", 0, 1, 0, 1);
}

TEST(LaunchTest, HalfSetOrContradictoryVariablesAreNamed) {
  EXPECT_EQ(error_of({{"RANK", "3"}}), "RANK is '3' but WORLD_SIZE is not set: set both, or neither to run alone");
  EXPECT_EQ(error_of({{"PLAIT_SIZE", "2"}}), "PLAIT_SIZE is '2' but PLAIT_RANK is not set: set both, or neither to run alone");
  EXPECT_NE(error_of({{"RANK", "4"}, {"WORLD_SIZE", "4"}}).find("RANK=4 and WORLD_SIZE=4"), std::string::npos);
  EXPECT_NE(error_of({{"RANK", "-1"}, {"WORLD_SIZE", "4"}}).find("RANK=-1"), std::string::npos);
  EXPECT_NE(error_of({{"RANK", "0"}, {"WORLD_SIZE", "4x"}}).find("WORLD_SIZE=4x"), std::string::npos);
  EXPECT_NE(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}}).find("LOCAL_WORLD_SIZE is not set"), std::string::npos);
  EXPECT_NE(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}).find("local rank 1 of 2"),
            std::string::npos);
  EXPECT_NE(error_of({{"PLAIT_RANK", "0"}, {"PLAIT_SIZE", "2"}, {"PLAIT_JOB", "a b"}}).find("PLAIT_JOB"), std::string::npos);
}

TEST(EngineNamesTest, NamesAndBack) {
  for (Engine engine : {Engine::threads, Engine::shm, Engine::ucx}) EXPECT_EQ(*parse_engine(name(engine)), engine);
  EXPECT_NE(parse_engine("shn").status().message().find("threads, shm, ucx"), std::string::npos);
}

TEST(GroupOptionsTest, ComeFromTheEnvironment) {
  setenv("PLAIT_TIMEOUT", "2.5", 1);
  setenv("PLAIT_SPIN_US", "7", 1);
  const Result<GroupOptions> options = group_options_from_env();
  setenv("PLAIT_TIMEOUT", "soon", 1);
  const Result<GroupOptions> bad = group_options_from_env();
  unsetenv("PLAIT_TIMEOUT");
  unsetenv("PLAIT_SPIN_US");
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->timeout_s, 2.5);
  EXPECT_EQ(options->spin_us, 7);
  EXPECT_FALSE(bad.ok());
}

}  // namespace
}  // namespace plait::test
