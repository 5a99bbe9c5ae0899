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
  const moe::ExpertPath* path;
};

/// The one list of dispatchers.
constexpr std::array<DispatcherEntry, 5> entries = {{
    {Dispatcher::eager, "eager", &moe::alltoall_path},
    {Dispatcher::alltoall, "alltoall", &moe::alltoall_path},
    {Dispatcher::allgather, "allgather", &moe::allgather_path},
    {Dispatcher::mc2, "mc2", &moe::mc2_path},
    {Dispatcher::automatic, "auto", &moe::mc2_path},  // resolved before a path is asked for
}};

}  // namespace

std::string_view name(Dispatcher dispatcher) { return entries[static_cast<size_t>(dispatcher)].name; }

Result<Dispatcher> parse_dispatcher(std::string_view text) {
  for (const DispatcherEntry& entry : entries) {
    if (entry.name == text) return entry.dispatcher;
  }
  std::string known;
  for (const DispatcherEntry& entry : entries) known += fmt::format("{}{}", known.empty() ? "" : ", ", entry.name);
  return Status::invalid_argument(fmt::format("dispatcher '{}' is not known; known are: {}", text, known));
}

std::span<const Dispatcher> all_dispatchers() {
  static const std::vector<Dispatcher> all = [] {
    std::vector<Dispatcher> list;
    list.reserve(entries.size());
    for (const DispatcherEntry& entry : entries) list.push_back(entry.dispatcher);
    return list;
  }();
  return all;
}

namespace moe {

const ExpertPath& expert_path(Dispatcher dispatcher) { return *entries[static_cast<size_t>(dispatcher)].path; }

}  // namespace moe
}  // namespace plait
