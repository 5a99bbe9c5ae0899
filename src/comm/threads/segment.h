#pragma once
/// Segments of ranks that are threads of one process: anonymous memory, found through a table that the ranks share.

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "comm/engine.h"

namespace plait::comm::threads {

Result<std::shared_ptr<Segment>> make_segment(int64_t bytes);

/// Segments that were announced and not yet mapped by all peers. Holds them alive: a fast owner may be gone before a slow peer looks.
class SegmentTable {
 public:
  explicit SegmentTable(int num_ranks) : num_peers_(num_ranks - 1) {}
  void add(int rank, uint32_t segment_idx, std::shared_ptr<Segment> segment);
  /// To be called once by every peer.
  std::shared_ptr<Segment> take(int rank, uint32_t segment_idx);

 private:
  struct Entry {
    std::shared_ptr<Segment> segment;
    int num_awaited;
  };
  const int num_peers_;
  std::mutex mutex_;
  std::map<std::pair<int, uint32_t>, Entry> entries_;
};

class Store final : public SegmentStore {
 public:
  Store(int rank, std::shared_ptr<SegmentTable> table) : rank_(rank), table_(std::move(table)) {}
  Result<std::shared_ptr<Segment>> create(int64_t bytes) override { return make_segment(bytes); }
  Status announce(uint32_t segment_idx, const std::shared_ptr<Segment>& segment) override;
  Result<std::shared_ptr<Segment>> map(int peer, uint32_t segment_idx) override;

 private:
  int rank_;
  std::shared_ptr<SegmentTable> table_;
};

}  // namespace plait::comm::threads
