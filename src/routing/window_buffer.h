#pragma once
/// Memory of one rank that its peers read from or write to during a call.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plait/context.h"
#include "plait/group.h"
#include "plait/status.h"
#include "plait/tensor.h"
#include "routing/row_access.h"

namespace plait {

/// A window region of exactly the size asked for; in a group of one, memory of the arena.
class WindowBuffer {
 public:
  WindowBuffer() = default;
  /// Error: resource_exhausted, naming need and limit.
  static Result<WindowBuffer> open(const Context& context, Group& group, int64_t bytes);
  /// The region that `rows` begin, where they are contiguous and lie in this group's window; or nothing.
  static std::optional<WindowBuffer> find(const Group& group, const ConstTensorView& rows);

  std::byte* data() const { return memory_.get(); }
  /// What the exchange that announces it publishes; empty in a group of one.
  const Region& region() const { return region_; }
  /// A tensor in it that keeps it alive.
  Tensor tensor(int64_t offset, DType dtype, std::initializer_list<int64_t> shape) const;

 private:
  explicit WindowBuffer(Region region);
  Buffer memory_;
  Region region_;
};

/// Where all ranks have rows: `views` are those of one published place, `own` this rank's; `offset(rank)` counts bytes from the start.
template <typename Offset>
std::vector<WritableRankRows> rank_rows(const WindowBuffer& own, std::span<const RegionView> views, int rank, int64_t row_bytes, Offset offset) {
  std::vector<WritableRankRows> rows;
  for (int peer = 0; peer < static_cast<int>(views.size()); ++peer) {
    std::byte* base = peer == rank ? own.data() : views[static_cast<size_t>(peer)].writable();
    rows.push_back({base != nullptr ? base + offset(peer) : nullptr, row_bytes});
  }
  return rows;
}

/// The counters by which the ranks of a fused call tell each other how far they are. Every fused call raises each of them once.
enum FusedChannel : int { rows_there = 0, results_there = 1 };

/// The value that a channel will have when this rank's present call has raised it; equal on all ranks.
inline uint64_t next_value(const Group& group, FusedChannel channel) { return group.signal_value(group.rank(), channel) + 1; }

}  // namespace plait
