#pragma once
/// What an engine with common memory provides: memory that the other ranks can map, and knowledge of who is alive. The protocol, the
/// window, views, signals and errors are shared code above it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "plait/status.h"

namespace plait::comm {

/// Memory of one rank as one process sees it. Unmapped with the last reference; the bytes go when nobody maps them any more.
class Segment {
 public:
  Segment(std::byte* data, int64_t bytes) : data_(data), bytes_(bytes) {}
  virtual ~Segment() = default;
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  /// Gives the pages back although others still map them. For memory whose content nobody needs.
  virtual void discard() = 0;

 private:
  std::byte* data_;
  int64_t bytes_;
};

/// Makes, shows and maps segments for one rank of one group.
class SegmentStore {
 public:
  virtual ~SegmentStore() = default;
  /// `bytes` (a multiple of the page size) of reserved memory. Error: resource_exhausted.
  virtual Result<std::shared_ptr<Segment>> create(int64_t bytes) = 0;
  /// Makes own segment `segment_idx` known to all peers. Called before the first exchange that names it.
  virtual Status announce(uint32_t segment_idx, const std::shared_ptr<Segment>& segment) = 0;
  /// A peer's segment. Called after the exchange that names it.
  virtual Result<std::shared_ptr<Segment>> map(int peer, uint32_t segment_idx) = 0;
};

/// Knows which ranks have died.
class Liveness {
 public:
  virtual ~Liveness() = default;
  /// Ranks that are gone, in ascending order; never blocks. One that has left the group properly may be among them.
  virtual std::vector<int> find_dead() = 0;
};

}  // namespace plait::comm
