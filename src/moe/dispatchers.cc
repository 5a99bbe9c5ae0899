#include <fmt/format.h>

#include <array>
#include <string>
#include <vector>

#include "moe/expert_path.h"

namespace plait {
namespace {

struct DispatcherEntry {
  Dispatcher dispatcher;
  std::string_view name;
  const moe::ExpertPath* path;  ///< null: this build cannot run it
};

/// The one list of dispatchers.
constexpr std::array<DispatcherEntry, 5> entries = {{
    {Dispatcher::eager, "eager", &moe::alltoall_path},
    {Dispatcher::alltoall, "alltoall", &moe::alltoall_path},
    {Dispatcher::allgather, "allgather", &moe::allgather_path},
    {Dispatcher::mc2, "mc2", &moe::mc2_path},
    {Dispatcher::automatic, "auto", &moe::mc2_path},  // resolved before a path is asked for
}};

std::string list_names(bool only_available) {
  std::string list;
  for (const DispatcherEntry& entry : entries) {
    if (only_available && entry.path == nullptr) continue;
    if (!list.empty()) list += ", ";
    list += entry.name;
  }
  return list;
}

}  // namespace

std::string_view name(Dispatcher dispatcher) { return entries[static_cast<size_t>(dispatcher)].name; }

Result<Dispatcher> parse_dispatcher(std::string_view text) {
  for (const DispatcherEntry& entry : entries) {
    if (entry.name == text) return entry.dispatcher;
  }
  return Status::invalid_argument(fmt::format("dispatcher '{}' is not known; known are: {}", text, list_names(false)));
}

std::span<const Dispatcher> available_dispatchers() {
  static const std::vector<Dispatcher> available = [] {
    std::vector<Dispatcher> list;
    for (const DispatcherEntry& entry : entries) {
      if (entry.path != nullptr) list.push_back(entry.dispatcher);
    }
    return list;
  }();
  return available;
}

namespace moe {

Result<const ExpertPath*> expert_path(Dispatcher dispatcher) {
  const DispatcherEntry& entry = entries[static_cast<size_t>(dispatcher)];
  if (entry.path != nullptr) return entry.path;
  return Status::unavailable(fmt::format("dispatcher '{}' is not in this build; choose one of: {}", entry.name, list_names(true)));
}

}  // namespace moe
}  // namespace plait
