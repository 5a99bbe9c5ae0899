// PLAIT_DUMP: after a failure the file says for every rank which tile waits for which rank.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "failure_support.h"
#include "routing/window_buffer.h"
#include "support/processes.h"

namespace plait::test {
namespace {

constexpr int num_ranks = 3;

/// A name in a folder of the test's own, removed in the end.
class DumpFile {
 public:
  DumpFile() : folder_(std::filesystem::path(testing::TempDir()) / unique_job()) { std::filesystem::create_directory(folder_); }
  ~DumpFile() { std::filesystem::remove_all(folder_); }
  DumpFile(const DumpFile&) = delete;
  DumpFile& operator=(const DumpFile&) = delete;

  std::string path() const { return folder_ / "state.txt"; }
  std::string text() const {
    std::ifstream file(path());
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::filesystem::path folder_;
};

/// What one rank wrote: its first line and the lines below it.
struct Entry {
  std::string header, lines;
};

std::vector<Entry> entries_of(const std::string& text) {
  std::vector<Entry> entries;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("  ", 0) != 0) {
      entries.push_back({line, ""});
    } else if (!entries.empty()) {
      entries.back().lines += line + "\n";
    }
  }
  return entries;
}

/// Forward and backward of three ranks that dump to `path`; rank 2 stops before the nth of its signals on a channel.
std::vector<Status> stall_with_dump(const std::string& path, FusedChannel channel, int nth) {
  const KnownLayer layer(Dispatcher::mc2);
  return stall_at(Engine::shm, layer, {GroupCall::Kind::signal, channel, nth}, [&] { setenv("PLAIT_DUMP", path.c_str(), 1); });
}

/// Each rank has written once; those that waited show all `lines`.
void expect_entries(const std::string& text, const std::string& operation, const std::vector<std::string>& lines) {
  const std::vector<Entry> entries = entries_of(text);
  EXPECT_EQ(entries.size(), size_t{num_ranks}) << text;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const std::string start = "rank " + std::to_string(rank) + " of 3 (process ";
    int found = 0;
    for (const Entry& entry : entries) {
      if (entry.header.rfind(start, 0) != 0) continue;
      ++found;
      EXPECT_NE(entry.header.find("), " + operation + ": timeout: rank 2 did not reach"), std::string::npos) << entry.header;
      EXPECT_NE(entry.lines, "") << text;
      for (const std::string& line : lines) EXPECT_TRUE(rank == 2 || entry.lines.find(line) != std::string::npos) << line << " in:\n" << text;
    }
    EXPECT_EQ(found, 1) << "rank " << rank << " in:\n" << text;
  }
}

TEST(LayerDump, ListsForEveryRankWhichTilesWaitForWhichRank) {
  struct Case {
    FusedChannel channel;
    int nth;
    std::string operation;
    std::vector<std::string> lines;
  };
  const std::vector<Case> cases = {
      {rows_there, 1, "moe_forward", {"gate_up: waits for rows of rank 2\n"}},
      {results_there, 1, "moe_forward", {"all tiles done: waits for results of rank 2\n"}},
      {rows_there, 2, "moe_backward", {"backward_down: waits for rows of rank 2\n", "weight_gradient: waits for other tiles of this rank\n"}},
      {results_there, 2, "moe_backward", {"all tiles done: waits for results of rank 2\n"}}};
  for (const Case& c : cases) {
    const DumpFile file;
    for (const Status& status : stall_with_dump(file.path(), c.channel, c.nth)) EXPECT_EQ(status.rank(), 2) << status.to_string();
    expect_entries(file.text(), c.operation, c.lines);
  }
}

TEST(LayerDump, CallsWithoutTilesNameTheirError) {
  const DumpFile file;
  const KnownLayer layer(Dispatcher::alltoall);
  const std::vector<Status> statuses = fail_then_work(Engine::shm, 2, 60, layer, [&](const Context& context, Group& group) -> Status {
    if (group.rank() == 0) return {};
    setenv("PLAIT_DUMP", file.path().c_str(), 1);
    const Status status = layer.step(context, group);
    unsetenv("PLAIT_DUMP");
    return status;
  });
  const std::vector<Entry> entries = entries_of(file.text());
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_NE(entries[0].header.find("moe_forward: " + statuses[1].to_string()), std::string::npos) << entries[0].header;
  EXPECT_EQ(entries[0].lines, "  no tiles were under way\n");
}

TEST(LayerDump, AFileThatCannotBeWrittenChangesNothing) {
  const DumpFile file;
  const std::string pipe = file.path() + ".pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {file.path() + "/missing", pipe, std::string(5000, 'x')}) {
    for (const Status& status : stall_with_dump(path, rows_there, 1)) {
      expect_error(status, {StatusCode::timeout, 2, "dispatch", {"rank 2 did not reach"}}, path);
    }
  }
}

}  // namespace
}  // namespace plait::test
