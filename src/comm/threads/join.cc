// make_thread_groups and run_ranks.

#include <fmt/format.h>

#include <exception>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "comm/common_group.h"
#include "comm/threads/join.h"
#include "comm/threads/liveness.h"
#include "comm/threads/segment.h"

namespace plait {
namespace comm::threads {
namespace {

std::shared_ptr<std::byte> make_control_memory(int64_t bytes) {
  constexpr std::align_val_t alignment{2 * cache_line};
  auto* memory = static_cast<std::byte*>(::operator new(static_cast<size_t>(bytes), alignment, std::nothrow));
  if (memory == nullptr) return nullptr;
  std::fill_n(memory, bytes, std::byte{0});
  return {memory, [](std::byte* p) { ::operator delete(p, alignment); }};
}

}  // namespace

Result<std::vector<std::unique_ptr<Group>>> make_groups(int size, const GroupOptions& options, int64_t payload_capacity) {
  if (size < 1 || size > max_ranks) {
    return Status::invalid_argument(fmt::format("a group of {} ranks: sizes are 1 to {}", size, max_ranks));
  }
  const ControlLayout layout(size, payload_capacity);
  std::shared_ptr<std::byte> memory = make_control_memory(layout.total_bytes());
  if (!memory) return Status::resource_exhausted(fmt::format("no memory for the {} bytes that {} ranks share", layout.total_bytes(), size));
  const Control control(memory, layout, FutexScope::process);
  auto table = std::make_shared<SegmentTable>(size);
  std::vector<Protocol> protocols;
  for (int rank = 0; rank < size; ++rank) {
    protocols.emplace_back(rank, options, control, std::make_shared<ThreadLiveness>());
    protocols.back().introduce(0);
  }
  std::vector<std::unique_ptr<Group>> groups;
  for (int rank = 0; rank < size; ++rank) {
    Protocol& protocol = protocols[static_cast<size_t>(rank)];
    protocol.decide_spin();
    groups.push_back(std::make_unique<CommonGroup>(Engine::threads, std::move(protocol), std::make_unique<Store>(rank, table)));
  }
  return groups;
}

namespace {

/// One rank's life: the body, its failure told to the others, then the end of its group.
Status run_rank(std::unique_ptr<Group> group, const std::function<Status(Group&)>& body) {
  Status status;
  try {
    status = body(*group);
  } catch (const std::exception& error) {
    status = Status::internal(fmt::format("rank {} threw: {}", group->rank(), error.what())).at_rank(group->rank());
  } catch (...) {
    status = Status::internal(fmt::format("rank {} threw something that is no std::exception", group->rank())).at_rank(group->rank());
  }
  if (!status.ok()) group->abort(status);
  return status;
}

}  // namespace
}  // namespace comm::threads

Result<std::vector<std::unique_ptr<Group>>> make_thread_groups(int size, const GroupOptions& options) {
  return comm::threads::make_groups(size, options, comm::default_payload_capacity);
}

std::vector<Status> run_ranks(int size, const GroupOptions& options, const std::function<Status(Group&)>& body) {
  Result<std::vector<std::unique_ptr<Group>>> groups = make_thread_groups(size, options);
  if (!groups.ok()) return {static_cast<size_t>(std::max(size, 1)), groups.status()};
  std::vector<Status> statuses(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    try {
      threads.emplace_back(
          [&, rank, group = std::move((*groups)[rank])]() mutable { statuses[rank] = comm::threads::run_rank(std::move(group), body); });
    } catch (const std::system_error& error) {
      statuses[rank] = Status::resource_exhausted(fmt::format("no thread for rank {}: {}", rank, error.what())).at_rank(static_cast<int>(rank));
      if ((*groups)[rank]) (*groups)[rank]->abort(statuses[rank]);
    }
  }
  groups->clear();  // ranks without a thread leave
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

}  // namespace plait
