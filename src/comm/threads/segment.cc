#include "comm/threads/segment.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>

#include "base/status_macros.h"
#include "comm/memory_check.h"

namespace plait::comm::threads {
namespace {

class HeapSegment final : public Segment {
 public:
  using Segment::Segment;
  ~HeapSegment() override { munmap(data(), static_cast<size_t>(bytes())); }
  void discard() override { madvise(data(), static_cast<size_t>(bytes()), MADV_DONTNEED); }
};

}  // namespace

Result<std::shared_ptr<Segment>> make_segment(int64_t bytes) {
  PLAIT_RETURN_IF_ERROR(check_available(bytes));
  const auto length = static_cast<size_t>(bytes);
  void* data = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return reservation_failed(bytes, errno, "the process's address space: RLIMIT_AS");
  auto segment = std::make_shared<HeapSegment>(static_cast<std::byte*>(data), bytes);
  madvise(data, length, MADV_HUGEPAGE);  // a wish: without it the pages are small
#ifdef MADV_POPULATE_WRITE
  // Pages that exist are seen by the next rank that asks for what is left. Kernels before 5.14 do not know the call.
  if (madvise(data, length, MADV_POPULATE_WRITE) != 0 && errno == ENOMEM) return reservation_failed(bytes, errno, "the cgroup's memory limit");
#endif
  return std::shared_ptr<Segment>(std::move(segment));
}

void SegmentTable::add(int rank, uint32_t segment_idx, std::shared_ptr<Segment> segment) {
  if (num_peers_ == 0) return;
  std::lock_guard lock(mutex_);
  entries_[{rank, segment_idx}] = {std::move(segment), num_peers_};
}

std::shared_ptr<Segment> SegmentTable::take(int rank, uint32_t segment_idx) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find({rank, segment_idx});
  if (found == entries_.end()) return nullptr;
  std::shared_ptr<Segment> segment = found->second.segment;
  if (--found->second.num_awaited == 0) entries_.erase(found);
  return segment;
}

Status Store::announce(uint32_t segment_idx, const std::shared_ptr<Segment>& segment) {
  table_->add(rank_, segment_idx, segment);
  return {};
}

Result<std::shared_ptr<Segment>> Store::map(int peer, uint32_t segment_idx) {
  std::shared_ptr<Segment> segment = table_->take(peer, segment_idx);
  if (!segment) return Status::internal(fmt::format("segment {} of rank {} was not announced to rank {}", segment_idx, peer, rank_)).at_rank(peer);
  return segment;
}

}  // namespace plait::comm::threads
