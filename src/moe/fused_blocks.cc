#include "moe/fused_blocks.h"

#include <algorithm>
#include <utility>

#include "moe/expert_path.h"
#include "routing/window_buffer.h"

namespace plait::moe {
namespace {

/// Blocks of fewer rows are put together up to that many: their matmuls stream weights, and a task costs as much as reading a few kilobytes.
constexpr int64_t merged_rows = 64;
constexpr int64_t chains_per_thread = 4;

}  // namespace

int64_t BlockChain::num_rows() const {
  int64_t rows = 0;
  for (const ExpertBlock& block : blocks) rows += block.num_rows();
  return rows;
}

TileChain BlockChain::tile_chain() const {
  TileChain chain;
  chain.expert = expert_;
  chain.row_begin = blocks.front().row_begin;
  chain.row_end = blocks.front().row_end;
  for (const ExpertBlock& block : blocks) chain.sources.insert(chain.sources.end(), block.sources.begin(), block.sources.end());
  std::sort(chain.sources.begin(), chain.sources.end());
  chain.sources.erase(std::unique(chain.sources.begin(), chain.sources.end()), chain.sources.end());
  return chain;
}

int64_t BlockChain::num_tasks(const MatmulTiles& tiles) const { return single() ? 1 : static_cast<int64_t>(blocks.size()) * tiles.num_tasks(); }

int64_t BlockChain::num_row_tasks() const {
  if (single()) return 1;
  return blocks.size() == 1 ? RowPieces(blocks.front(), threads_).count() : static_cast<int64_t>(blocks.size());
}

void BlockChain::run(const MatmulTiles& tiles, int64_t task, int worker, const MatmulTiles& next_tiles, const BlockChain& next) const {
  const int64_t per_block = tiles.num_tasks();
  const int64_t begin = single() ? 0 : task, end = single() ? static_cast<int64_t>(blocks.size()) * per_block : task + 1;
  for (int64_t i = begin; i < end; ++i) {
    const auto block = static_cast<size_t>(i / per_block);
    const bool last = block + 1 == blocks.size();
    const kernels::NextTile hint = last ? next_tiles.first_tile(next.blocks.front()) : tiles.first_tile(blocks[block + 1]);
    tiles.run(blocks[block], i % per_block, worker, &hint);
  }
}

std::vector<BlockChain> make_block_chains(const RoutingPlan& plan, int64_t max_rows, int threads) {
  const int64_t most = std::min(merged_rows, plan.num_recv_rows() / (chains_per_thread * threads));
  auto is_whole_expert = [&](const ExpertBlock& b) { return b.num_rows() == plan.expert_rows()[static_cast<size_t>(b.local_expert)]; };
  std::vector<BlockChain> chains;
  bool open = false;  // the last chain may grow
  for (ExpertBlock& block : make_expert_blocks(plan, max_rows)) {
    const bool small = block.num_rows() < most && is_whole_expert(block);
    if (!small || !open || chains.back().num_rows() + block.num_rows() > most) {
      chains.emplace_back(threads, static_cast<int32_t>(plan.placement().global(plan.rank(), block.local_expert)));
    }
    chains.back().blocks.push_back(std::move(block));
    open = small;
  }
  return chains;
}

std::vector<BlockChain> make_own_chains(int64_t num_rows, int64_t max_rows, int threads) {
  std::vector<BlockChain> chains;
  for (ExpertBlock& block : make_own_blocks(num_rows, max_rows)) {
    chains.emplace_back(threads, -1);
    chains.back().blocks.push_back(std::move(block));
  }
  return chains;
}

int add_results_gate(TileScheduler& scheduler, LayerCall& call, const FusedSignals& signals) {
  const uint64_t value = signals.results;
  return scheduler.add_gate([&call, value] { return value == 0 ? Status() : call.group.signal(results_there, value); });
}

Status run_scheduler(LayerCall& call, TileScheduler& scheduler, const FusedSignals& signals) {
  call.stage = signals.rows.stage;
  Status status = scheduler.run(call.context, call.group, signals.rows);
  if (!status.ok()) call.unfinished = scheduler.describe_unfinished();
  return status;
}

Status await_results(LayerCall& call, const RoutingPlan& plan, Stage stage) {
  StageScope scope(call, stage);
  return wait_for_results(call.group, plan, stage, call.unfinished);
}

}  // namespace plait::moe
