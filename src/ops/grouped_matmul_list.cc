#include <fmt/format.h>

#include "base/status_macros.h"
#include "plait/grouped_matmul.h"

namespace plait {
namespace {

Status check_length(std::span<const int64_t> list, size_t expected, std::string_view what) {
  if (list.size() == expected) return {};
  return Status::invalid_argument(
      fmt::format("group list: {} {} given, {} needed: one for each of the weight's groups (for expert parallelism: the "
                  "local experts only)",
                  list.size(), what, expected));
}

/// Adds a group's rows to the running total. `index` is the place in the list that says so.
Status add_rows(size_t index, int64_t count, int64_t max_rows, int64_t* total) {
  if (count < 0) return Status::invalid_argument(fmt::format("group list: item {} is a count of {} rows; counts are 0 or more", index, count));
  if (count > max_rows - *total) {
    return Status::invalid_argument(fmt::format("group list: with item {} ({} rows) the groups need more rows than there are: {} + {} > {}", index,
                                                count, *total, count, max_rows));
  }
  *total += count;
  return {};
}

Result<std::vector<int64_t>> from_ends(std::span<const int64_t> list, int64_t num_groups, int64_t max_rows) {
  PLAIT_RETURN_IF_ERROR(check_length(list, static_cast<size_t>(num_groups), "cumulative ends"));
  std::vector<int64_t> counts;
  int64_t begin = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    int64_t end = list[i];
    if (end < begin) {
      return Status::invalid_argument(fmt::format(
          "group list: cumulative end {} at item {} is less than {} before it; ends never decrease and start at 0 or more", end, i, begin));
    }
    if (end > max_rows) {
      return Status::invalid_argument(
          fmt::format("group list: cumulative end {} at item {} is beyond the {} rows: {} > {}", end, i, max_rows, end, max_rows));
    }
    counts.push_back(end - begin);
    begin = end;
  }
  return counts;
}

Result<std::vector<int64_t>> from_counts(std::span<const int64_t> list, int64_t num_groups, int64_t max_rows) {
  PLAIT_RETURN_IF_ERROR(check_length(list, static_cast<size_t>(num_groups), "counts"));
  int64_t total = 0;
  for (size_t i = 0; i < list.size(); ++i) PLAIT_RETURN_IF_ERROR(add_rows(i, list[i], max_rows, &total));
  return std::vector<int64_t>(list.begin(), list.end());
}

Result<std::vector<int64_t>> from_pairs(std::span<const int64_t> list, int64_t num_groups, int64_t max_rows) {
  if (list.size() % 2 != 0) {
    return Status::invalid_argument(fmt::format("group list: {} numbers given for pairs (group, count); an even length is needed", list.size()));
  }
  std::vector<int64_t> counts(static_cast<size_t>(num_groups), 0);
  int64_t last = -1;
  int64_t total = 0;
  for (size_t i = 0; i < list.size(); i += 2) {
    int64_t group = list[i];
    if (group < 0 || group >= num_groups) {
      return Status::invalid_argument(fmt::format("group list: item {} names group {}; groups are in [0, {})", i, group, num_groups));
    }
    if (group <= last) {
      return Status::invalid_argument(fmt::format("group list: item {} names group {} after group {}; groups ascend strictly", i, group, last));
    }
    PLAIT_RETURN_IF_ERROR(add_rows(i + 1, list[i + 1], max_rows, &total));
    counts[static_cast<size_t>(group)] = list[i + 1];
    last = group;
  }
  return counts;
}

}  // namespace

Result<std::vector<int64_t>> group_counts(std::span<const int64_t> list, GroupListType type, int64_t num_groups, int64_t max_rows) {
  switch (type) {
    case GroupListType::cumulative:
      return from_ends(list, num_groups, max_rows);
    case GroupListType::counts:
      return from_counts(list, num_groups, max_rows);
    case GroupListType::pairs:
      return from_pairs(list, num_groups, max_rows);
  }
  return Status::invalid_argument(
      fmt::format("group list type {} is unknown; allowed: 0 (cumulative ends), 1 (counts), 2 (pairs)", static_cast<int>(type)));
}

}  // namespace plait
