#pragma once
/// What the fused forward and backward have in common: blocks of rows as chains of tasks.

#include <cstdint>
#include <vector>

#include "moe/call.h"
#include "ops/matmul_tiles.h"
#include "routing/fused_call.h"
#include "routing/tile_scheduler.h"

namespace plait::moe {

/// Blocks that go through their stages together: one, or several small ones of different experts, which apart would cost more than they hide.
/// Where one thread does everything, a stage of a chain is a single task.
class BlockChain {
 public:
  /// `expert`: the first one's global number, for messages.
  explicit BlockChain(int threads, int32_t expert) : threads_(threads), expert_(expert) {}

  std::vector<ExpertBlock> blocks;
  int64_t num_rows() const;

  /// A chain for the scheduler, without steps.
  TileChain tile_chain() const;
  int64_t num_tasks(const MatmulTiles& tiles) const;
  int64_t num_row_tasks() const;

  /// A task of a matmul; what `next_tiles` needs for `next` will probably come after the last one.
  void run(const MatmulTiles& tiles, int64_t task, int worker, const MatmulTiles& next_tiles, const BlockChain& next) const;
  /// A task of elementwise work: calls run_rows(begin, end, local expert) with rows in expert-major order.
  template <typename RunRows>
  void run_rows(int64_t task, RunRows run_rows) const {
    for (size_t i = single() ? 0 : first_block(task); i < blocks.size(); ++i) {
      const RowPieces pieces(blocks[i], blocks.size() == 1 ? threads_ : 1);
      const int64_t piece = blocks.size() == 1 ? task : 0;
      run_rows(pieces.begin(piece), pieces.end(piece), blocks[i].local_expert);
      if (!single()) return;
    }
  }

 private:
  bool single() const { return threads_ == 1; }
  size_t first_block(int64_t task) const { return blocks.size() == 1 ? 0 : static_cast<size_t>(task); }

  int threads_;
  int32_t expert_;
};

/// All rows of the plan's rank, in the order to begin in.
std::vector<BlockChain> make_block_chains(const RoutingPlan& plan, int64_t max_rows, int threads);
/// Rows of a single group that are there.
std::vector<BlockChain> make_own_chains(int64_t num_rows, int64_t max_rows, int threads);

/// The gate that tells peers that their results are there.
int add_results_gate(TileScheduler& scheduler, LayerCall& call, const FusedSignals& signals);

/// Runs the scheduler; where it fails, the state of the tiles is kept for the dump.
Status run_scheduler(LayerCall& call, TileScheduler& scheduler, const FusedSignals& signals);

}  // namespace plait::moe
