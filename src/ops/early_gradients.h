#pragma once
/// Weight gradients that begin before all rows of their group are done.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "ops/matmul_tiles.h"
#include "plait/context.h"
#include "plait/routing.h"
#include "routing/tile_scheduler.h"

namespace plait {

/// Where nothing else can run, the tiles of a group's weight gradients go over the rows that are done, from the first on, and keep their
/// accumulators until the others follow. The bits are the same: each sum is made in the order of the rows.
/// Use: add_gates(), then the blocks' chains, which lead to gate_of() them, then the chains of all gradients, then add_chains(); and run() in
/// place of the tiles' own.
class EarlyGradients {
 public:
  /// `most_bytes`: for the accumulators of all groups; memory is taken when it is needed first.
  EarlyGradients(const Context& context, std::vector<const WeightGradientTiles*> tiles, int64_t most_bytes)
      : context_(context), tiles_(std::move(tiles)), left_bytes_(most_bytes) {}
  EarlyGradients(const EarlyGradients&) = delete;
  EarlyGradients& operator=(const EarlyGradients&) = delete;

  struct BlockEnd {
    int64_t group, row_end;  ///< counted inside the group
  };
  /// `blocks`: all blocks of rows, in any order. `whole[g]` is the gate behind which the gradients of all rows of group g begin.
  void add_gates(TileScheduler& scheduler, std::vector<BlockEnd> blocks, std::span<const int> whole);
  /// no_gate where nothing is early: for the last or only block of a group.
  int gate_of(const BlockEnd& block) const;
  /// After all other fillers: these chains are the last choice. `first_expert` is the global number of group 0.
  void add_chains(TileScheduler& scheduler, int64_t first_expert);

  /// A task of `tiles` for the rows of the group that are left.
  void run(const WeightGradientTiles& tiles, int64_t group, int64_t task, int worker) const;

 private:
  struct Stretch {
    int64_t begin, end;
    int64_t block_end;
    int gate;  ///< opens when the block and all before it are done
  };
  struct Group {
    int64_t group = 0;
    int whole = TileChain::no_gate;
    int64_t num_rows = 0;
    std::vector<Stretch> stretches;  ///< of all blocks but the last
    std::once_flag first_tile;
    Buffer carry;           ///< empty: no memory was left, and the group stays whole
    int64_t rows_done = 0;  ///< their sums are in `carry`
  };

  const Group* find(int64_t group) const;
  int64_t carry_bytes(int64_t group) const;
  float* carry_of(const Group& group, const WeightGradientTiles& tiles) const;
  void take_memory(Group& group);
  void run_stretch(Group& group, const Stretch& stretch, int64_t tile, int worker);

  const Context& context_;
  std::vector<const WeightGradientTiles*> tiles_;
  std::deque<Group> groups_;
  std::atomic<int64_t> left_bytes_;
};

/// A part of what receiving the plan's rows would take, so that a fused call stays below the unfused one's memory; a few kilobytes always.
inline int64_t early_gradient_bytes(const RoutingPlan& plan, int64_t row_bytes) {
  return std::max<int64_t>(plan.num_recv_rows() * row_bytes / 4, 65536);
}

}  // namespace plait
