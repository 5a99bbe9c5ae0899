#pragma once
/// Where the rows of a fused operator lie: the only place where operators meet the memory of other ranks. Rows are counted in this rank's
/// expert-major order: local expert, source rank, the sender's order.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/rows.h"
#include "plait/routing.h"

namespace plait {

/// The rows that one rank has for one of this rank's experts.
struct RankBlock {
  int source;
  int64_t local_expert;
  int64_t expert_row;    ///< its first row in this rank's expert-major order
  int64_t permuted_row;  ///< its first row in the source's permuted order
  int64_t num_rows;
};

/// Calls visit(RankBlock) for all blocks of a plan's rank that have rows, in expert-major order.
template <typename Visit>
void for_each_rank_block(const RoutingPlan& plan, Visit visit) {
  const ExpertPlacement& place = plan.placement();
  for (int64_t j = 0; j < place.experts_per_rank(); ++j) {
    const int64_t expert = place.global(plan.rank(), j);
    for (int source = 0; source < place.num_ranks; ++source) {
      const int64_t num_rows = plan.counts().at(source, expert);
      if (num_rows > 0) visit(RankBlock{source, j, plan.recv_begin(plan.rank(), j, source), plan.send_begin(source, expert), num_rows});
    }
  }
}

/// A rank's rows at a constant stride.
template <typename Byte>
struct BasicRankRows {
  Byte* data = nullptr;
  int64_t row_bytes = 0;
};

/// Addresses of this rank's expert-major rows in the memory of the ranks that they belong to. Whoever makes it keeps that memory alive.
template <typename Byte>
class BasicRowAddresses {
 public:
  /// Rows that every rank holds in its permuted order; ranks[s] is where rank s has them.
  static BasicRowAddresses permuted(const RoutingPlan& plan, std::span<const BasicRankRows<Byte>> ranks) {
    BasicRowAddresses result;
    result.list_.resize(static_cast<size_t>(plan.num_recv_rows()));
    for_each_rank_block(plan, [&](const RankBlock& block) {
      const BasicRankRows<Byte>& rank = ranks[static_cast<size_t>(block.source)];
      for (int64_t i = 0; i < block.num_rows; ++i) result.at(block.expert_row + i) = rank.data + (block.permuted_row + i) * rank.row_bytes;
    });
    return result;
  }
  /// Rows of tokens: expert-major row i is row tokens[i] of its source.
  static BasicRowAddresses of_tokens(const RoutingPlan& plan, std::span<const BasicRankRows<Byte>> ranks, std::span<const int32_t> tokens) {
    BasicRowAddresses result;
    result.list_.resize(static_cast<size_t>(plan.num_recv_rows()));
    for_each_rank_block(plan, [&](const RankBlock& block) {
      const BasicRankRows<Byte>& rank = ranks[static_cast<size_t>(block.source)];
      for (int64_t i = block.expert_row; i < block.expert_row + block.num_rows; ++i)
        result.at(i) = rank.data + tokens[static_cast<size_t>(i)] * rank.row_bytes;
    });
    return result;
  }

  kernels::BasicRows<Byte> rows() const { return {nullptr, 0, list_.data()}; }

 private:
  Byte*& at(int64_t row) { return list_[static_cast<size_t>(row)]; }
  std::vector<Byte*> list_;
};

using RankRows = BasicRankRows<const std::byte>;
using WritableRankRows = BasicRankRows<std::byte>;
/// Rows to read, and places for result rows.
using RowSource = BasicRowAddresses<const std::byte>;
using RowSink = BasicRowAddresses<std::byte>;

/// A block of rows of one expert, the unit of readiness of the fused operators.
struct ExpertBlock {
  int64_t local_expert;
  int64_t first_row;             ///< of the expert, in expert-major order
  int64_t row_begin, row_end;    ///< counted inside the expert
  std::vector<int32_t> sources;  ///< ranks that have rows in it, ascending

  int64_t num_rows() const { return row_end - row_begin; }
};

/// All rows of the plan's rank in blocks of at most max_rows. An expert's rows are cut into as few, nearly equal parts, and where it costs
/// little between two ranks, so that a block waits for as few of them as possible. In the order to begin in: blocks of own rows
/// first, then by the rank that comes last counted from this one.
std::vector<ExpertBlock> make_expert_blocks(const RoutingPlan& plan, int64_t max_rows);

/// Rows of a single group that wait for nobody, in as few, nearly equal parts.
std::vector<ExpertBlock> make_own_blocks(int64_t num_rows, int64_t max_rows);

}  // namespace plait
