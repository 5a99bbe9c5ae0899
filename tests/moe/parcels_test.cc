// What travels home for a token: as few rows as the tree allows, each entry once.

#include "moe/parcels.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace plait::test {
namespace {

using moe::Parcel;
using moe::ParcelPlan;

ParcelPlan plan_of(const std::vector<int32_t>& ids, const std::vector<float>& weights, int64_t k, const ExpertPlacement& place, int64_t least) {
  return ParcelPlan({ids, weights, k}, place, least);
}

TEST(Parcels, ANodeWithOneOwnerTravelsAsItsSum) {
  // 8 experts on 2 ranks: {0..3} and {4..7}. Experts 1, 2, 3 are one node's; 6 is alone.
  const ParcelPlan plan = plan_of({3, 6, 1, 2}, {1, 1, 1, 1}, 4, {8, 2}, 3);
  ASSERT_EQ(plan.num_tokens(), 1);
  const auto parcels = plan.of_token(0);
  ASSERT_EQ(parcels.size(), 2U);
  EXPECT_TRUE(parcels[0].is_sum);
  EXPECT_EQ(std::vector<int32_t>(plan.entries(parcels[0]).begin(), plan.entries(parcels[0]).end()), (std::vector<int32_t>{2, 3, 0}));
  EXPECT_FALSE(parcels[1].is_sum);
  EXPECT_EQ(parcels[1].owner, 1);
  EXPECT_EQ(plan.num_rows(), 1);
  EXPECT_EQ(plan.num_sums(), 1);
}

TEST(Parcels, RanksThatDoNotFitTheTreeSplitIt) {
  // 6 experts on 3 ranks: the root splits {0,1,2 | 3,4,5}, rank 1 has 2 and 3, one on either side: never one sum.
  const ParcelPlan plan = plan_of({2, 3}, {1, 1}, 2, {6, 3}, 2);
  EXPECT_EQ(plan.of_token(0).size(), 1U);  // the root itself: all present experts live with rank 1
  EXPECT_TRUE(plan.of_token(0)[0].is_sum);
  const ParcelPlan mixed = plan_of({2, 3, 0}, {1, 1, 1}, 3, {6, 3}, 2);
  EXPECT_EQ(mixed.num_rows(), 3);
  EXPECT_EQ(mixed.num_sums(), 0);
}

TEST(Parcels, ReducedTakesARanksEntriesWhateverTheTree) {
  const std::vector<int32_t> ids = {5, 2, 3, 0};  // ranks of 6 experts on 3: {0,1}, {2,3}, {4,5}; 2 and 3 are on either side of the root's split
  const std::vector<float> weights(4, 1.0F);
  const ParcelPlan plan({ids, weights, 4}, {6, 3}, 2, Combine::reduced);
  ASSERT_EQ(plan.of_token(0).size(), 3U);
  EXPECT_FALSE(plan.of_token(0)[0].is_sum);
  EXPECT_TRUE(plan.of_token(0)[1].is_sum);
  EXPECT_EQ(plan.of_token(0)[1].num_entries, 2);
  EXPECT_EQ(plan.of_token(0)[2].owner, 2);
}

TEST(Parcels, AbsentEntriesDoNotTravel) {
  const ParcelPlan plan = plan_of({0, 1, 2, 9}, {0.0F, 1e-40F, 1, 1}, 4, {8, 2}, 2);
  ASSERT_EQ(plan.of_token(0).size(), 1U);
  EXPECT_EQ(plan.entries(plan.of_token(0)[0]).front(), 2);
  EXPECT_EQ(plan_of({}, {}, 2, {8, 2}, 2).num_tokens(), 0);
}

TEST(Parcels, EveryPresentEntryTravelsOnceFromItsOwner) {
  std::mt19937 random(7);
  for (const ExpertPlacement place : {ExpertPlacement{12, 3}, ExpertPlacement{16, 4}, ExpertPlacement{5, 1}, ExpertPlacement{14, 7}}) {
    for (const int64_t least : {2, 3}) {
      const int64_t k = 5, tokens = 200;
      std::vector<int32_t> ids;
      std::vector<float> weights;
      for (int64_t i = 0; i < tokens * k; ++i) {
        ids.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(place.num_experts + 1)));
        weights.push_back(random() % 6 == 0 ? 0.0F : 1.0F);
      }
      const ParcelPlan plan = plan_of(ids, weights, k, place, least);
      std::vector<int> seen(ids.size(), 0);
      int64_t rows = 0, sums = 0;
      for (int64_t t = 0; t < tokens; ++t) {
        for (const Parcel& parcel : plan.of_token(t)) {
          EXPECT_EQ(parcel.place, parcel.is_sum ? sums++ : rows++);
          EXPECT_EQ(parcel.is_sum, parcel.num_entries >= least);
          EXPECT_TRUE(parcel.is_sum || parcel.num_entries == 1);
          for (const int32_t entry : plan.entries(parcel)) {
            EXPECT_EQ(entry / k, t);
            EXPECT_EQ(place.owner(ids[static_cast<size_t>(entry)]), parcel.owner);
            ++seen[static_cast<size_t>(entry)];
          }
        }
      }
      for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(seen[i], ids[i] < place.num_experts && weights[i] != 0 ? 1 : 0);
      EXPECT_EQ(plan.num_rows(), rows);
      EXPECT_EQ(plan.num_sums(), sums);
    }
  }
}

}  // namespace
}  // namespace plait::test
