// What the control groups (v1 and v2) grant this process. A group's limit holds together with those of all groups above it.

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/cpu.h"

namespace plait {
namespace {

constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

/// A file that holds one number; nothing where it is absent or says "max" or -1.
std::optional<int64_t> number_in(const std::string& path) {
  std::optional<std::string> line = first_line(path);
  if (!line) return std::nullopt;
  std::istringstream text(*line);
  int64_t value = 0;
  if (!(text >> value) || value < 0) return std::nullopt;
  return value;
}

/// The number after `key` in a file of lines "key value", or 0.
int64_t value_after(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream text(line);
    std::string word;
    int64_t value = 0;
    if (text >> word >> value && word == key) return value;
  }
  return 0;
}

struct GroupFolder {
  std::string path;
  bool v2;
};

/// This process's groups for `controller`, each followed by its ancestors up to the mount point. Inside a container the path that the
/// kernel names may not exist below the mount; then only the existing ancestors count, of which the mount point is the container's own.
std::vector<GroupFolder> group_folders(const std::string& root, const std::string& controller) {
  std::vector<GroupFolder> folders;
  auto add_with_ancestors = [&folders](const std::string& mount, std::string path, bool v2) {
    while (!path.empty() && path != "/") {
      folders.push_back({mount + path, v2});
      path.resize(path.find_last_of('/'));
    }
    folders.push_back({mount, v2});
  };
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "id:controller,controller:/path"; id 0 without controllers is v2
    auto first = line.find(':');
    auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (!path.empty() && path.front() != '/') continue;
    if (controllers.empty()) {
      add_with_ancestors(root + "/sys/fs/cgroup", path, true);
      add_with_ancestors(root + "/sys/fs/cgroup/unified", path, true);
    } else if (("," + controllers + ",").find("," + controller + ",") != std::string::npos) {
      add_with_ancestors(root + "/sys/fs/cgroup/" + controller, path, false);
      if (controllers != controller) add_with_ancestors(root + "/sys/fs/cgroup/" + controllers, path, false);
    }
  }
  return folders;
}

/// CPUs that one group grants, or 0.
double quota_of(const GroupFolder& folder) {
  std::optional<int64_t> quota;
  std::optional<int64_t> period;
  if (folder.v2) {  // "max 100000" or "150000 100000"
    std::istringstream text(first_line(folder.path + "/cpu.max").value_or(""));
    int64_t a = 0;
    int64_t b = 0;
    if (text >> a >> b) {
      quota = a;
      period = b;
    }
  } else {
    quota = number_in(folder.path + "/cpu.cfs_quota_us");
    period = number_in(folder.path + "/cpu.cfs_period_us");
  }
  if (quota.value_or(0) <= 0 || period.value_or(0) <= 0) return 0;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

/// Bytes that one group leaves: its limit less its use, where the page cache it could drop does not count as use.
int64_t memory_left_in(const GroupFolder& folder) {
  std::optional<int64_t> limit = number_in(folder.path + (folder.v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  if (!limit) return unlimited;
  int64_t used = number_in(folder.path + (folder.v2 ? "/memory.current" : "/memory.usage_in_bytes")).value_or(0);
  int64_t cache = value_after(folder.path + "/memory.stat", folder.v2 ? "inactive_file" : "total_inactive_file");
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, used - cache));
}

}  // namespace

double cgroup_cpu_quota(const std::string& root) {
  double least = 0;
  for (const GroupFolder& folder : group_folders(root, "cpu")) {
    double quota = quota_of(folder);
    if (quota > 0 && (least == 0 || quota < least)) least = quota;
  }
  return least;
}

int64_t available_memory_bytes(const std::string& root) {
  int64_t kilobytes = value_after(root + "/proc/meminfo", "MemAvailable:");
  int64_t least = kilobytes > 0 ? kilobytes * 1024 : unlimited;
  for (const GroupFolder& folder : group_folders(root, "memory")) least = std::min(least, memory_left_in(folder));
  return least;
}

}  // namespace plait
