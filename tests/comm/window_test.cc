// The free list of a segment against a map of its bytes.

#include "comm/window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/test_tensors.h"

namespace plait::test {
namespace {

using comm::FreeList;

TEST(FreeListTest, NeighboursJoinWhateverTheOrder) {
  for (const std::vector<int>& order : {std::vector<int>{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}}) {
    FreeList list(300);
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(list.take(100), i * 100);
    EXPECT_FALSE(list.best_gap(1).has_value());
    for (int i : order) list.give_back(i * 100, 100);
    EXPECT_EQ(list.best_gap(300), 300);
  }
}

TEST(FreeListTest, TheSmallestGapThatFitsIsTaken) {
  FreeList list(1000);
  for (int i = 0; i < 10; ++i) list.take(100);
  list.give_back(100, 300);
  list.give_back(600, 100);
  list.give_back(800, 200);
  EXPECT_EQ(list.best_gap(150), 200);
  EXPECT_EQ(list.take(150), 800);
  EXPECT_EQ(list.take(60), 600);
  EXPECT_EQ(list.take(300), 100);
  EXPECT_FALSE(list.best_gap(51).has_value());
  EXPECT_EQ(list.best_gap(45), 50);
}

TEST(FreeListTest, RandomUseNeverOverlapsAndLosesNothing) {
  constexpr int64_t bytes = 4096;
  struct Taken {
    int64_t offset, bytes;
  };
  Random random(1);
  FreeList list(bytes);
  std::vector<bool> used(bytes);
  std::vector<Taken> taken;
  for (int step = 0; step < 20'000; ++step) {
    const int64_t want = 1 + random.below(300);
    if (random.below(2) == 0 && list.best_gap(want)) {
      const Taken fresh{list.take(want), want};
      for (int64_t i = fresh.offset; i < fresh.offset + want; ++i) {
        ASSERT_FALSE(used[static_cast<size_t>(i)]) << "step " << step;
        used[static_cast<size_t>(i)] = true;
      }
      taken.push_back(fresh);
    } else if (!taken.empty()) {
      std::swap(taken[static_cast<size_t>(random.below(static_cast<int64_t>(taken.size())))], taken.back());
      list.give_back(taken.back().offset, taken.back().bytes);
      std::fill_n(used.begin() + taken.back().offset, taken.back().bytes, false);
      taken.pop_back();
    }
  }
  for (const Taken& rest : taken) list.give_back(rest.offset, rest.bytes);
  EXPECT_EQ(list.best_gap(bytes), bytes);
}

}  // namespace
}  // namespace plait::test
