#include "routing/state_dump.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "base/file_size_signal.h"
#include "base/log.h"
#include "plait/env.h"
#include "routing/row_access.h"
#include "routing/window_buffer.h"

namespace plait {
namespace {

/// Files and terminals only: a pipe whose reader is slow or gone would block or end the process.
bool may_be_written(int file) {
  struct stat about {};
  return fstat(file, &about) == 0 && (S_ISREG(about.st_mode) || S_ISCHR(about.st_mode));
}

/// False with errno set where not all of it was written.
bool append(const std::string& path, const std::string& text) {
  const FileSizeSignalBlock no_signal;
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
  if (file < 0) return false;
  errno = EINVAL;
  const bool written = may_be_written(file) && write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  close(file);
  errno = error;
  return written;
}

std::string indented(std::string_view lines) {
  std::string text;
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size() - 1) + 1;
    text += fmt::format("  {}", lines.substr(0, end));
    lines.remove_prefix(end);
  }
  return text;
}

}  // namespace

Status concerning(const Status& error, std::string_view note, int64_t expert) {
  const std::string message = note.empty() ? error.message() : fmt::format("{}; {}", error.message(), note);
  return Status(error.code(), message)
      .at_rank(error.rank())
      .in_stage(error.stage())
      .at_expert(error.expert() >= 0 ? error.expert() : static_cast<int>(expert));
}

Status without_results(const RoutingPlan& plan, const Status& error) {
  const ExpertPlacement& place = plan.placement();
  if (error.rank() < 0 || error.rank() >= place.num_ranks) return error;
  int64_t num_rows = 0, first = -1;
  for (int64_t j = 0; j < place.experts_per_rank(); ++j) {
    const int64_t expert = place.global(error.rank(), j), rows = plan.counts().at(plan.rank(), expert);
    if (rows > 0 && num_rows == 0) first = expert;
    num_rows += rows;
  }
  if (num_rows == 0) return error;
  return concerning(error,
                    fmt::format("{} went to experts of rank {}, the first to expert {}", num_rows == 1 ? "1 row" : fmt::format("{} rows", num_rows),
                                error.rank(), first),
                    first);
}

Status without_rows(const RoutingPlan& plan, const Status& error) {
  int64_t num_rows = 0, first = -1;
  for_each_rank_block(plan, [&](const RankBlock& block) {
    if (block.source != error.rank()) return;
    if (num_rows == 0) first = plan.placement().global(plan.rank(), block.local_expert);
    num_rows += block.num_rows;
  });
  if (num_rows == 0) return error;
  return concerning(
      error, fmt::format("{} {} for rank {}, the first of expert {}", num_rows, num_rows == 1 ? "row waits" : "rows wait", error.rank(), first),
      first);
}

std::string describe_missing_results(const Group& group) {
  const uint64_t value = group.signal_value(group.rank(), results_there);
  std::vector<int> missing;
  for (int peer = 0; peer < group.size(); ++peer) {
    if (group.signal_value(peer, results_there) < value) missing.push_back(peer);
  }
  return missing.empty() ? "" : fmt::format("all tiles done: waits for results of rank {}\n", fmt::join(missing, ", "));
}

void dump_state(const Group& group, std::string_view operation, const Status& error, std::string_view tiles) {
  const Result<Env> env = Env::read();
  if (!env.ok() || env->dump.empty()) return;
  const std::string text = fmt::format("rank {} of {} (process {}), {}: {}\n{}", group.rank(), group.size(), getpid(), operation, error.to_string(),
                                       indented(tiles.empty() ? "no tiles were under way\n" : tiles));
  if (append(env->dump, text)) return;
  log(LogLevel::warning, fmt::format("PLAIT_DUMP: {} cannot be written: {}", env->dump, std::strerror(errno)));
}

}  // namespace plait
