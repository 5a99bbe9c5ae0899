#include "base/cpu.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "plait/context.h"

namespace plait {
namespace {

namespace fs = std::filesystem;

/// A directory that stands for the root of the file system.
class FakeRoot : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "plait-root-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};
using CgroupTest = FakeRoot;

TEST(Cpu, AMissingFeatureHasAReasonAndAPresentOneNone) {
  const CpuFeatures& f = cpu_features();
  EXPECT_EQ(f.avx2_fma_f16c, f.avx2_reason.empty());
  EXPECT_EQ(f.avx512, f.avx512_reason.empty());
  EXPECT_EQ(f.avx512_bf16, f.avx512_bf16_reason.empty());
  EXPECT_EQ(f.neon, f.neon_reason.empty());
  EXPECT_FALSE(f.neon && f.avx2_fma_f16c);
  EXPECT_TRUE(f.avx512 || !f.avx512_bf16);
  EXPECT_TRUE(f.avx2_fma_f16c || !f.avx512);
  EXPECT_EQ(&f, &cpu_features());
}

TEST(Cpu, UsableCpusAreAtLeastOneAndAtMostTheAffinity) {
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  EXPECT_GE(usable_cpus(), 1);
  EXPECT_LE(usable_cpus(), CPU_COUNT(&set));
}

// A launcher's OMP_NUM_THREADS=1 says nothing about the CPUs that this process may use.
TEST(Cpu, OmpNumThreadsIsNotAsked) {
  int before = usable_cpus();
  setenv("OMP_NUM_THREADS", "1", 1);
  EXPECT_EQ(usable_cpus(), before);
  unsetenv("OMP_NUM_THREADS");
}

TEST_F(CgroupTest, NothingThereMeansNoLimit) {
  EXPECT_EQ(cgroup_cpu_quota(root_), 0);
  EXPECT_EQ(available_memory_bytes(root_), std::numeric_limits<int64_t>::max());
}

TEST_F(CgroupTest, Version2QuotaIsTheLeastOnTheWayUp) {
  write("/proc/self/cgroup", "0::/job/rank\n");
  write("/sys/fs/cgroup/job/rank/cpu.max", "max 100000\n");
  write("/sys/fs/cgroup/cpu.max", "400000 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(root_), 4);
  write("/sys/fs/cgroup/job/cpu.max", "150000 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(root_), 1.5);
  write("/sys/fs/cgroup/job/rank/cpu.max", "50000 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(root_), 0.5);
}

TEST_F(CgroupTest, Version2InAContainerThatSeesOnlyItsOwnMount) {
  write("/proc/self/cgroup", "0::/docker/0123456789\n");
  write("/sys/fs/cgroup/cpu.max", "100000 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(root_), 1);
}

TEST_F(CgroupTest, Version1QuotaUnderJoinedControllers) {
  write("/proc/self/cgroup", "12:memory:/a\n4:cpu,cpuacct:/a/b\n0::/\n");
  write("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_quota(root_), 0);
  write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "250000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_quota(root_), 2.5);
}

TEST_F(CgroupTest, MalformedFilesMeanNoLimit) {
  write("/proc/self/cgroup", "garbage\n0::relative\n0::/ok\n");
  write("/sys/fs/cgroup/ok/cpu.max", "lots\n");
  write("/sys/fs/cgroup/ok/memory.max", "");
  EXPECT_EQ(cgroup_cpu_quota(root_), 0);
  EXPECT_EQ(available_memory_bytes(root_), std::numeric_limits<int64_t>::max());
}

TEST_F(CgroupTest, MemoryIsTheLeastOfFreeAndWhatTheGroupsLeave) {
  write("/proc/meminfo", "MemTotal:  8000 kB\nMemFree:  10 kB\nMemAvailable:    5000 kB\n");
  EXPECT_EQ(available_memory_bytes(root_), 5000 * 1024);
  write("/proc/self/cgroup", "0::/job/rank\n");
  write("/sys/fs/cgroup/job/rank/memory.max", "max\n");
  write("/sys/fs/cgroup/job/memory.max", "1000000\n");
  write("/sys/fs/cgroup/job/memory.current", "700000\n");
  EXPECT_EQ(available_memory_bytes(root_), 300000);
  write("/sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 200000\n");  // page cache that the kernel would drop
  EXPECT_EQ(available_memory_bytes(root_), 500000);
  write("/sys/fs/cgroup/job/memory.current", "1300000\n");
  EXPECT_EQ(available_memory_bytes(root_), 0);
}

TEST_F(CgroupTest, Version1Memory) {
  write("/proc/meminfo", "MemAvailable: 5000 kB\n");
  write("/proc/self/cgroup", "4:memory:/job\n0::/\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "123\n");
  EXPECT_EQ(available_memory_bytes(root_), 5000 * 1024);
  write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2000000\n");
  write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "500000\n");
  write("/sys/fs/cgroup/memory/job/memory.stat", "inactive_file 9\ntotal_inactive_file 100000\n");
  EXPECT_EQ(available_memory_bytes(root_), 1600000);
}

TEST(Memory, ThisMachineHasSomeLeft) {
  EXPECT_GT(available_memory_bytes(""), int64_t{1} << 20);
  EXPECT_LT(available_memory_bytes(""), int64_t{1} << 50);
}

}  // namespace
}  // namespace plait
