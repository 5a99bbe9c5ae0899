#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "plait/routing.h"
#include "routing/row_blocks.h"
#include "support/test_tensors.h"

namespace plait {
namespace {

CountsMatrix random_counts(int ranks, int64_t experts, uint64_t seed) {
  test::Random random(seed);
  CountsMatrix matrix{{experts, ranks}, {}};
  for (int64_t i = 0; i < ranks * experts; ++i) matrix.counts.push_back(random.below(4));
  return matrix;
}

/// Where a row came from: one number per (source, expert, index in the block).
int64_t tag(int source, int64_t expert, int64_t row) { return (source * 100 + expert) * 100 + row; }

std::vector<int64_t> sender_rows(const CountsMatrix& counts, int source) {
  std::vector<int64_t> rows;
  for (int64_t expert = 0; expert < counts.placement.num_experts; ++expert) {
    for (int64_t i = 0; i < counts.at(source, expert); ++i) rows.push_back(tag(source, expert, i));
  }
  return rows;
}

std::vector<int64_t> expert_major_rows(const CountsMatrix& counts, int owner) {
  std::vector<int64_t> rows;
  for (int64_t j = 0; j < counts.placement.experts_per_rank(); ++j) {
    const int64_t expert = counts.placement.global(owner, j);
    for (int source = 0; source < counts.placement.num_ranks; ++source) {
      for (int64_t i = 0; i < counts.at(source, expert); ++i) rows.push_back(tag(source, expert, i));
    }
  }
  return rows;
}

/// A region with two sections: the rows' tags as 8 bytes, and as 4 bytes.
std::vector<std::byte> region_of(const std::vector<int64_t>& rows) {
  const int64_t row_bytes[] = {8, 4};
  const SectionLayout layout(static_cast<int64_t>(rows.size()), row_bytes);
  std::vector<std::byte> region(static_cast<size_t>(layout.bytes()));
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto narrow = static_cast<int32_t>(rows[i]);
    std::copy_n(reinterpret_cast<const std::byte*>(&rows[i]), 8, region.data() + layout.offset(0) + i * 8);
    std::copy_n(reinterpret_cast<const std::byte*>(&narrow), 4, region.data() + layout.offset(1) + i * 4);
  }
  return region;
}

using MakeBlocks = RowBlocks (*)(const RoutingPlan&, std::span<const int64_t>, std::span<std::byte* const>);
using RowsOf = std::vector<int64_t> (*)(const CountsMatrix&, int);

/// Every rank receives from all regions; what arrives must be `expected`, in both sections.
void check_delivery(const CountsMatrix& counts, MakeBlocks make, RowsOf sent, RowsOf expected) {
  const int ranks = counts.placement.num_ranks;
  constexpr std::array<int64_t, 2> row_bytes = {8, 4};
  std::vector<std::vector<std::byte>> regions;
  std::vector<RowBlocks> blocks;
  for (int rank = 0; rank < ranks; ++rank) regions.push_back(region_of(sent(counts, rank)));
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<int64_t> want = expected(counts, rank);
    std::vector<int64_t> wide(want.size(), -1);
    std::vector<int32_t> narrow(want.size(), -1);
    const std::array<std::byte*, 2> destinations = {reinterpret_cast<std::byte*>(wide.data()), reinterpret_cast<std::byte*>(narrow.data())};
    blocks.push_back(make(RoutingPlan(counts, rank), row_bytes, destinations));
    for (const RecvBlock& block : blocks.back().recv) {
      std::copy_n(regions[static_cast<size_t>(block.peer)].data() + block.offset, block.bytes, block.destination);
    }
    EXPECT_EQ(wide, want) << "rank " << rank;
    EXPECT_TRUE(std::equal(narrow.begin(), narrow.end(), want.begin(), want.end())) << "rank " << rank;
  }
  for (int a = 0; a < ranks; ++a) {  // what a lists as sent to b is what b lists as received from a, in the same order
    for (int b = 0; b < ranks; ++b) {
      std::vector<std::array<int64_t, 2>> sends, receives;
      for (const SendBlock& block : blocks[static_cast<size_t>(a)].send) {
        if (block.peer == b) sends.push_back({block.offset, block.bytes});
      }
      for (const RecvBlock& block : blocks[static_cast<size_t>(b)].recv) {
        if (block.peer == a) receives.push_back({block.offset, block.bytes});
      }
      EXPECT_EQ(sends, receives) << a << " to " << b;
    }
  }
}

TEST(ExpertPlacement, OneFunctionDecides) {
  const ExpertPlacement place{12, 4};
  for (int64_t expert = 0; expert < 12; ++expert) {
    EXPECT_EQ(place.owner(expert), expert / 3);
    EXPECT_EQ(place.global(place.owner(expert), place.local(expert)), expert);
  }
  EXPECT_TRUE(place.validate().ok());
}

TEST(ExpertPlacement, RefusesUnevenNumbersNamingBoth) {
  for (const ExpertPlacement& place : {ExpertPlacement{6, 4}, ExpertPlacement{2, 4}}) {
    const Status status = place.validate();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_NE(status.message().find(std::to_string(place.num_experts)), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("4 ranks"), std::string::npos) << status.message();
  }
  EXPECT_FALSE((ExpertPlacement{0, 1}.validate().ok()));
  EXPECT_FALSE((ExpertPlacement{4, 0}.validate().ok()));
}

TEST(RoutingPlan, OffsetsAreThoseOfTheLayouts) {
  const CountsMatrix counts = random_counts(3, 6, 5);
  for (int rank = 0; rank < 3; ++rank) {
    const RoutingPlan plan(counts, rank);
    EXPECT_EQ(plan.num_send_rows(), static_cast<int64_t>(sender_rows(counts, rank).size()));
    EXPECT_EQ(plan.num_recv_rows(), static_cast<int64_t>(expert_major_rows(counts, rank).size()));
    for (int64_t j = 0; j < 2; ++j) {
      int64_t rows = 0;
      for (int source = 0; source < 3; ++source) rows += counts.at(source, rank * 2 + j);
      EXPECT_EQ(plan.expert_rows()[static_cast<size_t>(j)], rows);
    }
    for (int other = 0; other < 3; ++other) {
      const std::vector<int64_t> sent = sender_rows(counts, other), kept = expert_major_rows(counts, other);
      EXPECT_EQ(plan.num_send_rows(other), static_cast<int64_t>(sent.size()));
      EXPECT_EQ(plan.num_recv_rows(other), static_cast<int64_t>(kept.size()));
      for (int64_t expert = 0; expert < 6; ++expert) {
        if (counts.at(other, expert) > 0) {
          EXPECT_EQ(sent[static_cast<size_t>(plan.send_begin(other, expert))], tag(other, expert, 0));
        }
        const int owner = counts.placement.owner(expert);
        if (owner != other) continue;
        for (int source = 0; source < 3; ++source) {
          if (counts.at(source, expert) == 0) continue;
          const int64_t begin = plan.recv_begin(owner, counts.placement.local(expert), source);
          EXPECT_EQ(kept[static_cast<size_t>(begin)], tag(source, expert, 0));
        }
      }
    }
  }
}

TEST(RowBlocks, DispatchIsExpertMajorAndCombineIsItsInverse) {
  for (int ranks : {1, 2, 3, 4, 7}) {
    for (int64_t per_rank : {1, 3}) {
      for (uint64_t seed = 1; seed <= 5; ++seed) {
        const CountsMatrix counts = random_counts(ranks, ranks * per_rank, seed);
        check_delivery(counts, dispatch_blocks, sender_rows, expert_major_rows);
        check_delivery(counts, combine_blocks, expert_major_rows, sender_rows);
      }
    }
  }
}

TEST(RowBlocks, NoRowsNoBlocks) {
  const CountsMatrix counts{{4, 2}, std::vector<int64_t>(8, 0)};
  const int64_t row_bytes[] = {16};
  std::byte* const destinations[] = {nullptr};
  const RowBlocks blocks = dispatch_blocks(RoutingPlan(counts, 1), row_bytes, destinations);
  EXPECT_TRUE(blocks.send.empty());
  EXPECT_TRUE(blocks.recv.empty());
}

TEST(SectionLayout, SectionsAreAlignedAndDoNotOverlap) {
  const int64_t row_bytes[] = {10, 4, 3};
  const SectionLayout layout(7, row_bytes);
  EXPECT_EQ(layout.offset(0), 0);
  EXPECT_EQ(layout.offset(1), 128);
  EXPECT_EQ(layout.offset(2), 192);
  EXPECT_EQ(layout.bytes(), 192 + 21);
  const SectionLayout empty(0, row_bytes);
  EXPECT_EQ(empty.bytes(), 0);
}

}  // namespace
}  // namespace plait
