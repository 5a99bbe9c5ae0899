#pragma once
/// Other ranks' regions as one rank sees them: mapped segments, and the releases that wait to travel.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/engine.h"
#include "comm/window.h"
#include "plait/group.h"
#include "plait/status.h"

namespace plait::comm {

/// Ids of regions whose views were dropped here. Thread-safe; outlives the group while views do.
class ReleaseQueue {
 public:
  void push(uint64_t id);
  /// Moves the oldest ids, at most `capacity`, to `out`; returns how many.
  size_t take(uint64_t* out, size_t capacity);

 private:
  std::mutex mutex_;
  std::vector<uint64_t> ids_;
};

class Views {
 public:
  Views(int rank, std::shared_ptr<Window> window, SegmentStore& store)
      : rank_(rank), window_(std::move(window)), store_(store), releases_(std::make_shared<ReleaseQueue>()) {}

  /// The view that an exchange gives of a published region.
  Result<RegionView> view(const RegionRef& ref);
  /// The peer's segment holds no region any more.
  void forget(int peer, uint32_t segment_idx) { segments_.erase({peer, segment_idx}); }
  ReleaseQueue& releases() { return *releases_; }

 private:
  int rank_;
  std::shared_ptr<Window> window_;
  SegmentStore& store_;
  std::shared_ptr<ReleaseQueue> releases_;
  std::map<std::pair<int, uint32_t>, std::shared_ptr<Segment>> segments_;
};

}  // namespace plait::comm
