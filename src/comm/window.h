#pragma once
/// One rank's window: regions carved exactly from segments that grow on demand. docs/design/0003-groups.md, "Life of a region".

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "comm/engine.h"
#include "plait/group.h"
#include "plait/status.h"

namespace plait::comm {

/// The free bytes of one segment: first byte -> length, neighbours joined.
class FreeList {
 public:
  explicit FreeList(int64_t bytes) : free_{{0, bytes}} {}
  /// The smallest gap of at least `bytes`: its length, or nothing.
  std::optional<int64_t> best_gap(int64_t bytes) const;
  /// Takes `bytes` from the start of the smallest gap that holds them, which must exist.
  int64_t take(int64_t bytes);
  void give_back(int64_t offset, int64_t bytes);

 private:
  std::map<int64_t, int64_t> free_;
};

/// Thread-safe: regions and views may be dropped on any thread. allocate(), publish() and end_exchange() belong to the rank's own thread.
class Window : public std::enable_shared_from_this<Window> {
 public:
  explicit Window(int rank) : rank_(rank) {}
  ~Window();

  /// A region from memory that is there already, or nothing.
  std::optional<Region> allocate_from_free(int64_t bytes);
  /// The region that starts at `data`, has at least `bytes` and is still owned; or nothing.
  std::optional<Region> find(const std::byte* data, int64_t bytes) const;
  /// Makes room for a region of `bytes`: empty segments, all too small, go; a new one comes from the store. Then allocate_from_free() succeeds.
  Status grow(int64_t bytes, SegmentStore& store);

  /// Before an exchange that publishes `region` to `num_readers` ranks: its segment is announced, a reference per reader is counted.
  Status publish(const Region& region, int num_readers, SegmentStore& store);
  /// A reader has dropped its view.
  void release(uint64_t id);
  /// Once per exchange: segments that have been empty for long go. Returns up to `max_count` announced ones whose end the peers must learn.
  std::vector<uint32_t> end_exchange(size_t max_count);

  std::shared_ptr<Segment> segment(uint32_t segment_idx) const;
  int64_t bytes_in_use() const;
  int64_t reserved_bytes() const;
  int64_t peak_bytes() const;
  void reset_peak();

 private:
  struct Owner;
  struct Live {
    RegionRef ref;
    std::byte* data;
    int64_t bytes;  ///< rounded
    int64_t readers;
    bool owned;
    std::weak_ptr<Owner> owner;
  };
  struct Own {
    std::shared_ptr<Segment> memory;
    FreeList free;
    int64_t used = 0;
    int64_t idle_exchanges = 0;
    bool announced = false;
  };
  using Segments = std::map<uint32_t, Own>;

  void drop_owner(uint64_t id);
  void free_if_unused(uint64_t id);
  Segments::iterator retire(Segments::iterator segment);

  const int rank_;
  mutable std::mutex mutex_;
  Segments segments_;
  std::unordered_map<uint64_t, Live> live_;
  std::vector<uint32_t> retired_;  ///< announced once, not yet told to the peers
  uint32_t next_segment_ = 0;
  uint64_t next_region_ = 0;
  int64_t reserved_ = 0;
  int64_t in_use_ = 0;
  int64_t peak_ = 0;
};

/// The rank that owns a region, from its id.
constexpr int owner_of(uint64_t region_id) { return static_cast<int>(region_id >> 48); }

}  // namespace plait::comm
