#include "routing/row_access.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "routing/fused_call.h"
#include "support/test_tensors.h"

namespace plait {
namespace {

/// Rows of R ranks for E experts, row major.
RoutingPlan plan_of(int num_ranks, int64_t experts, const std::vector<int64_t>& counts, int rank) {
  return RoutingPlan(CountsMatrix{{num_ranks * experts, num_ranks}, counts}, rank);
}

RoutingPlan random_plan(int num_ranks, int64_t experts, int64_t largest, uint64_t seed, int rank) {
  test::Random random(seed);
  std::vector<int64_t> counts(static_cast<size_t>(num_ranks * num_ranks * experts));
  for (int64_t& count : counts) count = random.below(3) == 0 ? 0 : random.below(largest);
  return plan_of(num_ranks, experts, counts, rank);
}

/// Ranks that have rows in [begin, end) of a local expert, counted one by one.
std::vector<int32_t> sources_of(const RoutingPlan& plan, int64_t local_expert, int64_t begin, int64_t end) {
  std::vector<int32_t> sources;
  int64_t row = 0;
  for (int s = 0; s < plan.placement().num_ranks; ++s) {
    for (int64_t i = 0; i < plan.counts().at(s, plan.placement().global(plan.rank(), local_expert)); ++i, ++row) {
      if (row >= begin && row < end && (sources.empty() || sources.back() != s)) sources.push_back(s);
    }
  }
  return sources;
}

int furthest(const ExpertBlock& block, int rank, int num_ranks) {
  int distance = 0;
  for (int32_t s : block.sources) distance = std::max(distance, (s - rank + num_ranks) % num_ranks);
  return distance;
}

TEST(ExpertBlocks, CoverAllRowsOnceWithinTheLimit) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const int num_ranks = 1 + static_cast<int>(seed % 5), rank = static_cast<int>(seed) % num_ranks;
    const RoutingPlan plan = random_plan(num_ranks, 3, 1 + static_cast<int64_t>(seed) * 2, seed, rank);
    for (const int64_t max_rows : {1, 2, 7, 64, 1000}) {
      std::vector<int> covered(static_cast<size_t>(plan.num_recv_rows()), 0);
      std::vector<int64_t> parts(3, 0);
      for (const ExpertBlock& block : make_expert_blocks(plan, max_rows)) {
        EXPECT_GT(block.num_rows(), 0);
        EXPECT_LE(block.num_rows(), max_rows);
        EXPECT_EQ(block.first_row, plan.recv_begin(rank, block.local_expert, 0));
        EXPECT_EQ(block.sources, sources_of(plan, block.local_expert, block.row_begin, block.row_end));
        for (int64_t i = block.row_begin; i < block.row_end; ++i) ++covered[static_cast<size_t>(block.first_row + i)];
        ++parts[static_cast<size_t>(block.local_expert)];
      }
      EXPECT_EQ(std::count(covered.begin(), covered.end(), 1), plan.num_recv_rows()) << "seed " << seed << " limit " << max_rows;
      for (size_t j = 0; j < 3; ++j) EXPECT_EQ(parts[j], (plan.expert_rows()[j] + max_rows - 1) / max_rows) << "as few parts as possible";
    }
  }
}

TEST(ExpertBlocks, AreCutBetweenTwoRanksWhereOneIsNear) {
  // 41 + 43 rows and a limit of 64: the middle is 42, the boundary one row before it.
  const std::vector<ExpertBlock> near = make_expert_blocks(plan_of(2, 1, {41, 0, 43, 0}, 0), 64);
  ASSERT_EQ(near.size(), 2U);
  EXPECT_EQ(near[0].row_end, 41);
  EXPECT_EQ(near[0].sources, std::vector<int32_t>{0});
  EXPECT_EQ(near[1].sources, std::vector<int32_t>{1});
  // 20 + 64: the boundary is too far away, and the second part would not fit.
  const std::vector<ExpertBlock> far = make_expert_blocks(plan_of(2, 1, {20, 0, 64, 0}, 0), 64);
  ASSERT_EQ(far.size(), 2U);
  EXPECT_EQ(std::max(far[0].row_begin, far[1].row_begin), 42);
  // 66 + 62: the boundary is near, but behind the limit.
  const std::vector<ExpertBlock> full = make_expert_blocks(plan_of(2, 1, {66, 0, 62, 0}, 0), 64);
  ASSERT_EQ(full.size(), 2U);
  EXPECT_EQ(full[0].num_rows(), 64);
  EXPECT_EQ(full[1].num_rows(), 64);
}

TEST(ExpertBlocks, OwnRowsComeFirstThenTheNextRanks) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const int num_ranks = 4, rank = static_cast<int>(seed % 4);
    const std::vector<ExpertBlock> blocks = make_expert_blocks(random_plan(num_ranks, 4, 30, seed, rank), 8);
    for (size_t i = 1; i < blocks.size(); ++i) EXPECT_LE(furthest(blocks[i - 1], rank, num_ranks), furthest(blocks[i], rank, num_ranks));
  }
}

TEST(ExpertBlocks, NoRowsNoBlocks) { EXPECT_TRUE(make_expert_blocks(plan_of(2, 2, std::vector<int64_t>(8, 0), 1), 16).empty()); }

/// Each rank's memory is a list of numbers that say rank and row.
class RowAddresses : public ::testing::Test {
 protected:
  static constexpr int num_ranks = 3, rank = 1;
  RoutingPlan plan = random_plan(num_ranks, 2, 6, 9, rank);
  std::vector<std::vector<int64_t>> memory{3};
  std::vector<RankRows> ranks;

  void SetUp() override {
    for (int s = 0; s < num_ranks; ++s) {
      auto& list = memory[static_cast<size_t>(s)];
      for (int64_t i = 0; i < plan.num_send_rows(s); ++i) list.insert(list.end(), {1000 * s + i, -1});  // rows two numbers apart
      ranks.push_back({reinterpret_cast<const std::byte*>(list.data()), 2 * int64_t{sizeof(int64_t)}});
    }
  }
  static int64_t value(const kernels::Rows& rows, int64_t i) { return *reinterpret_cast<const int64_t*>(rows[i]); }
};

TEST_F(RowAddresses, OfPermutedRows) {
  const RowSource source = RowSource::permuted(plan, ranks);
  int64_t row = 0;
  for (int64_t j = 0; j < 2; ++j) {
    for (int s = 0; s < num_ranks; ++s) {
      const int64_t expert = rank * 2 + j;
      for (int64_t i = 0; i < plan.counts().at(s, expert); ++i, ++row)
        EXPECT_EQ(value(source.rows(), row), 1000 * s + plan.send_begin(s, expert) + i);
    }
  }
  EXPECT_EQ(row, plan.num_recv_rows());
}

TEST_F(RowAddresses, OfTokens) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < plan.num_recv_rows(); ++i) tokens.push_back(static_cast<int32_t>(i % 2));
  const RowSource source = RowSource::of_tokens(plan, ranks, tokens);
  for_each_rank_block(plan, [&](const RankBlock& block) {
    for (int64_t i = block.expert_row; i < block.expert_row + block.num_rows; ++i) EXPECT_EQ(value(source.rows(), i), 1000 * block.source + i % 2);
  });
}

TEST(RowPieces, CoverABlockOnce) {
  for (const int threads : {1, 2, 5}) {
    for (const int64_t num_rows : {1, 15, 16, 33, 500}) {
      const ExpertBlock block{0, 100, 7, 7 + num_rows, {0}};
      const RowPieces pieces(block, threads);
      int64_t row = 107;
      for (int64_t i = 0; i < pieces.count(); ++i) {
        EXPECT_EQ(pieces.begin(i), row);
        row = pieces.end(i);
      }
      EXPECT_EQ(row, 107 + num_rows);
    }
  }
}

}  // namespace
}  // namespace plait
