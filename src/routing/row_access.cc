#include "routing/row_access.h"

#include <algorithm>
#include <cstdlib>

namespace plait {
namespace {

/// A cut moves to a boundary between two ranks over this share of a block at most: blocks shrink little, and none grows beyond the limit.
constexpr int64_t largest_move = 8;

/// One expert's rows: where each rank's begin, and where the last ones end.
std::vector<int64_t> rank_boundaries(const RoutingPlan& plan, int64_t local_expert) {
  const ExpertPlacement& place = plan.placement();
  std::vector<int64_t> begins{0};
  for (int source = 0; source < place.num_ranks; ++source) {
    begins.push_back(begins.back() + plan.counts().at(source, place.global(plan.rank(), local_expert)));
  }
  return begins;
}

/// The place of a cut near `ideal`, at most `latest`.
int64_t place_cut(const std::vector<int64_t>& boundaries, int64_t ideal, int64_t latest, int64_t reach) {
  int64_t best = ideal;
  int64_t distance = reach + 1;
  for (int64_t boundary : boundaries) {
    if (boundary > latest || std::abs(boundary - ideal) >= distance) continue;
    best = boundary;
    distance = std::abs(boundary - ideal);
  }
  return best;
}

std::vector<int32_t> sources_of(const std::vector<int64_t>& boundaries, int64_t begin, int64_t end) {
  std::vector<int32_t> sources;
  for (size_t s = 0; s + 1 < boundaries.size(); ++s) {
    if (std::max(begin, boundaries[s]) < std::min(end, boundaries[s + 1])) sources.push_back(static_cast<int32_t>(s));
  }
  return sources;
}

void append_blocks(const RoutingPlan& plan, int64_t local_expert, int64_t max_rows, std::vector<ExpertBlock>& blocks) {
  const std::vector<int64_t> boundaries = rank_boundaries(plan, local_expert);
  const int64_t num_rows = boundaries.back();
  int64_t parts = (num_rows + max_rows - 1) / max_rows;
  for (int64_t begin = 0; begin < num_rows; --parts) {
    // The rest in equal parts; what a moved cut takes away must still fit the parts that follow.
    const int64_t ideal = begin + (num_rows - begin + parts - 1) / parts;
    const int64_t latest = std::min(begin + max_rows, num_rows);
    int64_t end = parts == 1 ? num_rows : place_cut(boundaries, ideal, latest, (ideal - begin) / largest_move);
    if (parts > 1 && num_rows - end > (parts - 1) * max_rows) end = ideal;
    blocks.push_back({local_expert, plan.recv_begin(plan.rank(), local_expert, 0), begin, end, sources_of(boundaries, begin, end)});
    begin = end;
  }
}

/// How far the block's last rank is in the order in which this rank serves the others; 0: own rows only.
int distance(const ExpertBlock& block, int rank, int num_ranks) {
  int furthest = 0;
  for (int32_t source : block.sources) furthest = std::max(furthest, (source - rank + num_ranks) % num_ranks);
  return furthest;
}

}  // namespace

std::vector<ExpertBlock> make_expert_blocks(const RoutingPlan& plan, int64_t max_rows) {
  std::vector<ExpertBlock> blocks;
  for (int64_t j = 0; j < plan.placement().experts_per_rank(); ++j) append_blocks(plan, j, max_rows, blocks);
  const int num_ranks = plan.placement().num_ranks;
  std::stable_sort(blocks.begin(), blocks.end(), [&](const ExpertBlock& a, const ExpertBlock& b) {
    return distance(a, plan.rank(), num_ranks) < distance(b, plan.rank(), num_ranks);
  });
  return blocks;
}

std::vector<ExpertBlock> make_own_blocks(int64_t num_rows, int64_t max_rows) {
  const int64_t parts = (num_rows + max_rows - 1) / max_rows;
  std::vector<ExpertBlock> blocks;
  blocks.reserve(static_cast<size_t>(parts));
  for (int64_t i = 0; i < parts; ++i) blocks.push_back({0, 0, num_rows * i / parts, num_rows * (i + 1) / parts, {}});
  return blocks;
}

}  // namespace plait
