#pragma once
/// Small cases and their runs on ranks of this process.

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "observe/run.h"
#include "observe/verify.h"

namespace plait::test {

inline Case small_case(int ranks = 2, DType dtype = DType::bf16) {
  Case c;
  c.layer.hidden = 32;
  c.layer.intermediate = 24;
  c.layer.dtype = dtype;
  c.layer.router.num_experts = 8;
  c.layer.router.top_k = 2;
  c.layer.router.norm_topk = true;
  c.ranks = ranks;
  c.tokens = 20;
  c.threads = 1;
  c.engine = Engine::threads;
  c.seed = 5;
  c.dispatchers = {Dispatcher::eager, Dispatcher::alltoall};
  return c;
}

/// A file of this test, removed with it.
class TemporaryFile {
 public:
  TemporaryFile(const std::string& name, const std::string& bytes) : path_(testing::TempDir() + "plait_observe_" + name) {
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Rank 0's report; the statuses of all ranks must be ok.
template <typename Report, typename Call>
Report on_ranks(int ranks, Call call) {
  Report report;
  std::vector<Status> statuses = run_ranks(ranks, {}, [&](Group& group) -> Status {
    Result<Report> own = call(group);
    if (!own.ok()) return own.status();
    if (group.rank() == 0) report = own.take();
    return {};
  });
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.to_string();
  return report;
}

inline RunReport run_on_ranks(const RunOptions& options) {
  return on_ranks<RunReport>(options.run_case.ranks, [&](Group& group) { return run_case(options, group); });
}

inline VerifyReport verify_on_ranks(const VerifyOptions& options) {
  return on_ranks<VerifyReport>(options.run_case.ranks, [&](Group& group) { return verify_case(options, group); });
}

}  // namespace plait::test
