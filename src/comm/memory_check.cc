#include "comm/memory_check.h"

#include <fmt/format.h>

#include <system_error>

#include "base/cpu.h"

namespace plait::comm {

std::string bytes_text(int64_t bytes) {
  if (bytes >= int64_t{1} << 30) return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
  if (bytes >= 1 << 20) return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
  if (bytes >= 1 << 10) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / (1 << 10));
  return fmt::format("{} bytes", bytes);
}

Status check_available(int64_t bytes) {
  const int64_t available = available_memory_bytes("");
  if (bytes <= available) return {};
  return Status::resource_exhausted(
      fmt::format("a window needs {} ({} bytes) more, {} are left (the least of free memory and the cgroup's limit): "
                  "use fewer tokens per rank or fewer ranks on this machine",
                  bytes_text(bytes), bytes, bytes_text(available)));
}

Status reservation_failed(int64_t bytes, int error, const std::string& limit) {
  return Status::resource_exhausted(fmt::format("a window needs {} ({} bytes) more, which the system refuses: {} ({})", bytes_text(bytes), bytes,
                                                std::system_category().message(error), limit));
}

}  // namespace plait::comm
