#include "comm/views.h"

#include <algorithm>

#include "base/status_macros.h"

namespace plait::comm {
namespace {

/// Held by all copies of a view of a peer's region: keeps it mapped, and asks for its release at the end.
struct PeerHold {
  std::shared_ptr<Segment> segment;
  std::shared_ptr<ReleaseQueue> releases;
  uint64_t id;
  PeerHold(std::shared_ptr<Segment> s, std::shared_ptr<ReleaseQueue> r, uint64_t i) : segment(std::move(s)), releases(std::move(r)), id(i) {}
  PeerHold(const PeerHold&) = delete;
  PeerHold& operator=(const PeerHold&) = delete;
  ~PeerHold() { releases->push(id); }
};

/// The same for a view of an own region, whose release needs no travel.
struct OwnHold {
  std::shared_ptr<Window> window;
  uint64_t id;
  OwnHold(std::shared_ptr<Window> w, uint64_t i) : window(std::move(w)), id(i) {}
  OwnHold(const OwnHold&) = delete;
  OwnHold& operator=(const OwnHold&) = delete;
  ~OwnHold() { window->release(id); }
};

}  // namespace

void ReleaseQueue::push(uint64_t id) {
  std::lock_guard lock(mutex_);
  ids_.push_back(id);
}

size_t ReleaseQueue::take(uint64_t* out, size_t capacity) {
  std::lock_guard lock(mutex_);
  const size_t count = std::min(capacity, ids_.size());
  const auto end = ids_.begin() + static_cast<std::ptrdiff_t>(count);
  std::copy(ids_.begin(), end, out);
  ids_.erase(ids_.begin(), end);
  return count;
}

Result<RegionView> Views::view(const RegionRef& ref) {
  const auto offset = static_cast<std::ptrdiff_t>(ref.offset);
  if (ref.rank == rank_) return RegionView(window_->segment(ref.segment)->data() + offset, ref, std::make_shared<OwnHold>(window_, ref.id));
  std::shared_ptr<Segment>& segment = segments_[{ref.rank, ref.segment}];
  if (!segment) {
    Result<std::shared_ptr<Segment>> mapped = store_.map(ref.rank, ref.segment);
    if (!mapped.ok()) {
      releases_->push(ref.id);
      return mapped.status();
    }
    segment = mapped.take();
  }
  return RegionView(segment->data() + offset, ref, std::make_shared<PeerHold>(segment, releases_, ref.id));
}

}  // namespace plait::comm
