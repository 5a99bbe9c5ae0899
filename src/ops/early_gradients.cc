#include "ops/early_gradients.h"

#include <algorithm>
#include <utility>

#include "plait/counters.h"

namespace plait {
namespace {

/// Rows of bf16 are multiplied in pairs that are counted from the group's first row.
constexpr int64_t whole_pairs(int64_t rows) { return rows / 2 * 2; }

}  // namespace

void EarlyGradients::add_gates(TileScheduler& scheduler, std::vector<BlockEnd> blocks, std::span<const int> whole) {
  std::sort(blocks.begin(), blocks.end(),
            [](const BlockEnd& a, const BlockEnd& b) { return a.group != b.group ? a.group < b.group : a.row_end < b.row_end; });
  for (size_t i = 0; i + 1 < blocks.size(); ++i) {
    const BlockEnd& block = blocks[i];
    if (blocks[i + 1].group != block.group) continue;
    if (groups_.empty() || groups_.back().group != block.group) {
      Group& added = groups_.emplace_back();
      added.group = block.group;
      added.whole = whole[static_cast<size_t>(block.group)];
    }
    Group& group = groups_.back();
    group.num_rows = blocks[i + 1].row_end;
    const int64_t begin = group.stretches.empty() ? 0 : group.stretches.back().end;
    group.stretches.push_back({begin, whole_pairs(block.row_end), block.row_end, scheduler.add_gate()});
  }
}

int EarlyGradients::gate_of(const BlockEnd& block) const {
  const Group* group = find(block.group);
  if (group == nullptr) return TileChain::no_gate;
  for (const Stretch& stretch : group->stretches) {
    if (stretch.block_end == block.row_end) return stretch.gate;
  }
  return TileChain::no_gate;
}

void EarlyGradients::add_chains(TileScheduler& scheduler, int64_t first_expert) {
  for (Group& group : groups_) {
    int64_t num_tiles = 0;
    for (const WeightGradientTiles* tiles : tiles_) num_tiles += tiles->num_tiles(group.group);
    for (size_t i = 0; i < group.stretches.size(); ++i) {
      const Stretch& stretch = group.stretches[i];
      TileChain chain;
      chain.add_step(Stage::weight_gradient, num_tiles);
      chain.filler = true;
      chain.behind = stretch.gate;
      chain.until = group.whole;
      chain.expert = static_cast<int32_t>(first_expert + group.group);
      chain.row_begin = stretch.begin;
      chain.row_end = stretch.end;
      chain.leads[0] = {scheduler.add_gate([&group, &stretch] {
                          if (group.carry.get() != nullptr) group.rows_done = stretch.end;
                          return Status();
                        }),
                        0};
      if (i + 1 < group.stretches.size()) chain.leads[1] = {group.stretches[i + 1].gate, 0};
      scheduler.add(std::move(chain), [this, &group, &stretch](const TileScheduler::TileAt& at) { run_stretch(group, stretch, at.tile, at.worker); });
    }
  }
}

const EarlyGradients::Group* EarlyGradients::find(int64_t group) const {
  const auto found = std::find_if(groups_.begin(), groups_.end(), [&](const Group& g) { return g.group == group; });
  return found != groups_.end() ? &*found : nullptr;
}

int64_t EarlyGradients::carry_bytes(int64_t group) const {
  int64_t floats = 0;
  for (const WeightGradientTiles* tiles : tiles_) floats += tiles->carry_floats(group);
  return floats * size_of(DType::f32);
}

float* EarlyGradients::carry_of(const Group& group, const WeightGradientTiles& tiles) const {
  auto* carry = reinterpret_cast<float*>(group.carry.get());
  for (const WeightGradientTiles* before : tiles_) {
    if (before == &tiles) break;
    carry += before->carry_floats(group.group);
  }
  return carry;
}

/// Without memory the group's gradients wait for all rows, as they do where nothing is early.
void EarlyGradients::take_memory(Group& group) {
  const int64_t bytes = carry_bytes(group.group);
  if (left_bytes_.fetch_sub(bytes) < bytes) {
    left_bytes_.fetch_add(bytes);
    return;
  }
  Result<Buffer> carry = context_.scratch(bytes);
  if (carry.ok()) group.carry = std::move(carry).take();
}

void EarlyGradients::run_stretch(Group& group, const Stretch& stretch, int64_t tile, int worker) {
  std::call_once(group.first_tile, [&] { take_memory(group); });
  if (group.carry.get() == nullptr) return;
  for (const WeightGradientTiles* tiles : tiles_) {
    const int64_t num_tiles = tiles->num_tiles(group.group);
    if (tile >= num_tiles) {
      tile -= num_tiles;
      continue;
    }
    const kernels::RowStretch rows{stretch.begin, stretch.end, carry_of(group, *tiles)};
    tiles->run_tile(group.group, tile, worker, &rows);
    context_.recorder().add(Counter::early_tiles, 1);
    return;
  }
}

void EarlyGradients::run(const WeightGradientTiles& tiles, int64_t group, int64_t task, int worker) const {
  const Group* early = find(group);
  if (early == nullptr || early->rows_done == 0) return tiles.run(group, task, worker);
  const kernels::RowStretch rows{early->rows_done, early->num_rows, carry_of(*early, tiles)};
  tiles.run(group, task, worker, &rows);
}

}  // namespace plait
