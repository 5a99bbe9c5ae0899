#include "comm/window.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "comm/control.h"
#include "comm/poison.h"

namespace plait::comm {
namespace {

constexpr int64_t page_granule = 64 << 10;  // a multiple of the page size of every supported system
constexpr int64_t huge_page = 2 << 20;
constexpr int64_t least_segment = 256 << 10;
constexpr int64_t most_spare = 64 << 20;       // memory that growth may reserve beyond the need
constexpr int64_t idle_limit_exchanges = 256;  // some training steps: shapes that alternate keep their memory

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
int64_t occupied(int64_t bytes) { return std::max(cache_line, round_up(bytes, cache_line)); }
int64_t segment_bytes(int64_t need) { return round_up(std::max(need, least_segment), need >= huge_page ? huge_page : page_granule); }

}  // namespace

std::optional<int64_t> FreeList::best_gap(int64_t bytes) const {
  std::optional<int64_t> best;
  for (const auto& [offset, length] : free_) {
    if (length >= bytes && (!best || length < *best)) best = length;
  }
  return best;
}

int64_t FreeList::take(int64_t bytes) {
  auto best = free_.end();
  for (auto gap = free_.begin(); gap != free_.end(); ++gap) {
    if (gap->second >= bytes && (best == free_.end() || gap->second < best->second)) best = gap;
  }
  const auto [offset, length] = *best;
  free_.erase(best);
  if (length > bytes) free_.emplace(offset + bytes, length - bytes);
  return offset;
}

void FreeList::give_back(int64_t offset, int64_t bytes) {
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += bytes;
      return;
    }
  }
  free_.emplace(offset, bytes);
}

/// Held by all copies of a Region.
struct Window::Owner {
  std::shared_ptr<Window> window;
  uint64_t id;
  ~Owner() { window->drop_owner(id); }
};

Window::~Window() {
  for (auto& [idx, own] : segments_) unpoison(own.memory->data(), own.memory->bytes());
}

std::optional<Region> Window::allocate_from_free(int64_t bytes) {
  const int64_t need = occupied(bytes);
  RegionRef ref;
  std::byte* data = nullptr;
  std::shared_ptr<Owner> owner;
  {
    std::lock_guard lock(mutex_);
    auto best = segments_.end();
    int64_t best_gap = 0;
    for (auto segment = segments_.begin(); segment != segments_.end(); ++segment) {
      const std::optional<int64_t> gap = segment->second.free.best_gap(need);
      if (gap && (best == segments_.end() || *gap < best_gap)) {
        best = segment;
        best_gap = *gap;
      }
    }
    if (best == segments_.end()) return std::nullopt;
    const int64_t offset = best->second.free.take(need);
    ref = {rank_, best->first, static_cast<uint64_t>(offset), static_cast<uint64_t>(bytes), static_cast<uint64_t>(rank_) << 48 | next_region_++};
    best->second.used += need;
    best->second.idle_exchanges = 0;
    data = best->second.memory->data() + offset;
    owner.reset(new Owner{shared_from_this(), ref.id});
    live_.emplace(ref.id, Live{ref, data, need, 0, true, owner});
    in_use_ += need;
    peak_ = std::max(peak_, in_use_);
  }
  unpoison(data, bytes);
  return Region(data, bytes, ref, std::move(owner));
}

std::optional<Region> Window::find(const std::byte* data, int64_t bytes) const {
  std::lock_guard lock(mutex_);
  for (const auto& [id, live] : live_) {
    if (live.data != data || static_cast<int64_t>(live.ref.bytes) < bytes) continue;
    if (std::shared_ptr<Owner> owner = live.owner.lock()) return Region(live.data, static_cast<int64_t>(live.ref.bytes), live.ref, std::move(owner));
  }
  return std::nullopt;
}

Status Window::grow(int64_t bytes, SegmentStore& store) {
  const int64_t need = occupied(bytes);
  int64_t reserved = 0;
  {
    std::lock_guard lock(mutex_);
    for (auto segment = segments_.begin(); segment != segments_.end();) segment = segment->second.used == 0 ? retire(segment) : std::next(segment);
    reserved = reserved_;
  }
  const int64_t spare = std::min(reserved / 2, most_spare);
  Result<std::shared_ptr<Segment>> memory = store.create(segment_bytes(std::max(need, spare)));
  if (!memory.ok()) memory = store.create(round_up(need, page_granule));
  if (!memory.ok()) return memory.status();
  poison((*memory)->data(), (*memory)->bytes());
  std::lock_guard lock(mutex_);
  reserved_ += (*memory)->bytes();
  segments_.emplace(next_segment_++, Own{*memory, FreeList((*memory)->bytes())});
  return {};
}

/// mutex_ is held; the segment holds no region.
Window::Segments::iterator Window::retire(Segments::iterator segment) {
  Own& own = segment->second;
  unpoison(own.memory->data(), own.memory->bytes());
  own.memory->discard();
  if (own.announced) retired_.push_back(segment->first);
  reserved_ -= own.memory->bytes();
  return segments_.erase(segment);
}

Status Window::publish(const Region& region, int num_readers, SegmentStore& store) {
  const RegionRef& ref = region.ref();
  std::shared_ptr<Segment> unknown;
  {
    std::lock_guard lock(mutex_);
    auto live = live_.find(ref.id);
    auto segment = segments_.find(ref.segment);
    if (ref.rank != rank_ || live == live_.end() || segment == segments_.end() || live->second.data != region.data()) {
      return Status::invalid_argument(
                 fmt::format("the region of {} bytes that rank {} publishes is not from its window of this group", ref.bytes, rank_))
          .at_rank(rank_);
    }
    live->second.readers += num_readers;
    if (!segment->second.announced) unknown = segment->second.memory;
    segment->second.announced = true;
  }
  return unknown ? store.announce(ref.segment, unknown) : Status();
}

void Window::release(uint64_t id) {
  std::lock_guard lock(mutex_);
  auto live = live_.find(id);
  if (live == live_.end()) return;
  --live->second.readers;
  free_if_unused(id);
}

void Window::drop_owner(uint64_t id) {
  std::lock_guard lock(mutex_);
  live_.at(id).owned = false;
  free_if_unused(id);
}

void Window::free_if_unused(uint64_t id) {
  const Live live = live_.at(id);
  if (live.owned || live.readers > 0) return;
  live_.erase(id);
  Own& own = segments_.at(live.ref.segment);
  poison(live.data, live.bytes);
  own.free.give_back(static_cast<int64_t>(live.ref.offset), live.bytes);
  own.used -= live.bytes;
  in_use_ -= live.bytes;
}

std::vector<uint32_t> Window::end_exchange(size_t max_count) {
  std::lock_guard lock(mutex_);
  for (auto segment = segments_.begin(); segment != segments_.end();) {
    Own& own = segment->second;
    own.idle_exchanges = own.used == 0 ? own.idle_exchanges + 1 : 0;
    segment = own.idle_exchanges > idle_limit_exchanges ? retire(segment) : std::next(segment);
  }
  const size_t count = std::min(max_count, retired_.size());
  std::vector<uint32_t> told(retired_.begin(), retired_.begin() + static_cast<std::ptrdiff_t>(count));
  retired_.erase(retired_.begin(), retired_.begin() + static_cast<std::ptrdiff_t>(count));
  return told;
}

std::shared_ptr<Segment> Window::segment(uint32_t segment_idx) const {
  std::lock_guard lock(mutex_);
  auto found = segments_.find(segment_idx);
  return found == segments_.end() ? nullptr : found->second.memory;
}

int64_t Window::bytes_in_use() const {
  std::lock_guard lock(mutex_);
  return in_use_;
}

int64_t Window::reserved_bytes() const {
  std::lock_guard lock(mutex_);
  return reserved_;
}

int64_t Window::peak_bytes() const {
  std::lock_guard lock(mutex_);
  return peak_;
}

void Window::reset_peak() {
  std::lock_guard lock(mutex_);
  peak_ = in_use_;
}

}  // namespace plait::comm
