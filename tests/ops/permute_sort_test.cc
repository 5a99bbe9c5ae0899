/// sort_by_expert and sort_by_map: stable order, any number of threads, sentinels, and the errors that name token, slot and value.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "ops/permute_support.h"

namespace plait::test {
namespace {

/// Entries sorted by id with std::stable_sort; ids >= E left out (-1).
std::vector<int> oracle_position(const Tensor& ids, int64_t num_experts) {
  auto n = static_cast<size_t>(ids.view.num_elements());
  std::vector<int> order(n), position(n, -1);
  std::iota(order.begin(), order.end(), 0);
  const auto* id = ids.as<int32_t>();
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return id[a] < id[b]; });
  int row = 0;
  for (int entry : order) {
    if (id[entry] < num_experts) position[static_cast<size_t>(entry)] = row++;
  }
  return position;
}

void expect_position(const Tensor& position, const std::vector<int>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(position.as<int32_t>()[i], expected[i]) << "entry " << i;
}

TEST(PermuteSort, StableOrderWithAnyNumberOfThreads) {
  struct {
    int64_t num_tokens, k, num_experts;
  } cases[] = {{1000, 2, 3}, {0, 2, 4}, {1, 1, 1}, {7, 1, 5}, {20000, 4, 64}, {5000, 8, 1}, {3, 600, 600}};
  for (int threads : {1, 2, 8}) {
    auto context = permute_context(threads);
    for (const auto& c : cases) {
      Routing r = random_routing(*context, c.num_tokens, c.k, c.num_experts, 17);
      expect_position(r.position, oracle_position(r.ids, c.num_experts));
      EXPECT_EQ(static_cast<int64_t>(r.counts.size()), c.num_experts);
      for (int64_t e = 0; e < c.num_experts; ++e) {
        EXPECT_EQ(r.counts[static_cast<size_t>(e)], std::count(r.ids.as<int32_t>(), r.ids.as<int32_t>() + c.num_tokens * c.k, e));
      }
    }
  }
}

TEST(PermuteSort, EqualInFiftyRuns) {
  auto one = permute_context(1), two = permute_context(2), eight = permute_context(8);
  Routing first = random_routing(*one, 6000, 2, 3, 5);
  for (int run = 0; run < 50; ++run) {
    for (Context* context : {two.get(), eight.get()}) {
      Routing again = random_routing(*context, 6000, 2, 3, 5);
      EXPECT_BITS_EQ(again.position, first.position);
    }
  }
}

TEST(PermuteSort, IdsAndPositionOfAnyStride) {
  auto context = permute_context();
  // ids (3,2) read from a transposed (2,3); position written to every second item.
  Tensor storage = i32_tensor({2, 3}, {2, 0, 1, 1, 1, 0});
  Tensor position = make_tensor(DType::i32, {12});
  TensorView every_second = position.view.slice(0, 6);
  every_second.strides[0] = 2;
  auto counts = sort_by_expert(*context, storage.view.transposed(0, 1), 3, false, every_second);
  ASSERT_TRUE(counts.ok());
  EXPECT_EQ(*counts, (std::vector<int64_t>{2, 3, 1}));
  // ids by token: 2 1 | 0 1 | 1 0
  EXPECT_EQ(to_vector(every_second), (std::vector<double>{5, 2, 0, 3, 4, 1}));
  for (int i = 1; i < 12; i += 2) EXPECT_EQ(position.as<int32_t>()[i], -1) << "the gaps stay as they were (all bits set)";
}

TEST(PermuteSort, SentinelsTakeNoPart) {
  auto context = permute_context();
  Tensor ids = i32_tensor({3, 2}, {1, 4, 0, 7, 4, 1}), position = make_tensor(DType::i32, {6});
  auto counts = sort_by_expert(*context, ids, 4, true, position);
  ASSERT_TRUE(counts.ok());
  EXPECT_EQ(*counts, (std::vector<int64_t>{1, 2, 0, 0}));
  EXPECT_EQ(to_vector(position), (std::vector<double>{1, -1, 0, -1, -1, 2}));
}

TEST(PermuteSort, WrongIdsNameTokenSlotAndValue) {
  auto context = permute_context(2);
  struct {
    std::vector<int> ids;
    bool sentinel;
    const char* text;
  } cases[] = {{{0, 1, 2, -1, 0, 4}, false, "token 1, slot 1 on rank 3 is -1"},
               {{0, 1, 2, 3, 4, -1}, false, "token 2, slot 0 on rank 3 is 4; it must be in [0, 4)"},
               {{0, 1, 2, 3, 9, -5}, true, "token 2, slot 1 on rank 3 is -5"}};
  for (const auto& c : cases) {
    Tensor ids = i32_tensor({3, 2}, c.ids), position = make_tensor(DType::i32, {6});
    auto counts = sort_by_expert(*context, ids, 4, c.sentinel, position, 3);
    ASSERT_FALSE(counts.ok());
    EXPECT_EQ(counts.status().code(), StatusCode::invalid_argument);
    EXPECT_EQ(counts.status().rank(), 3);
    EXPECT_NE(counts.status().message().find(c.text), std::string::npos) << counts.status().message();
    for (double p : to_vector(position)) EXPECT_EQ(p, -1) << "nothing is written";
  }
}

TEST(PermuteSort, TheFirstOfManyWrongIdsIsNamed) {
  auto context = permute_context(8);
  std::vector<int> ids(80000, 0);
  for (size_t i = 12345; i < ids.size(); i += 3) ids[i] = 99;
  Tensor tensor = i32_tensor({40000, 2}, ids), position = make_tensor(DType::i32, {80000});
  for (int run = 0; run < 20; ++run) {
    auto counts = sort_by_expert(*context, tensor, 8, false, position);
    ASSERT_FALSE(counts.ok());
    EXPECT_NE(counts.status().message().find("token 6172, slot 1 is 99"), std::string::npos) << counts.status().message();
  }
}

TEST(PermuteSort, WrongShapes) {
  auto context = permute_context();
  Tensor ids = i32_tensor({3, 2}, {0, 0, 0, 0, 0, 0});
  auto fails = [&](const ConstTensorView& wrong_ids, int64_t num_experts, const TensorView& position) {
    return sort_by_expert(*context, wrong_ids, num_experts, false, position).status().code() == StatusCode::invalid_argument;
  };
  Tensor position = make_tensor(DType::i32, {6});
  EXPECT_TRUE(fails(ids, 1, make_tensor(DType::i32, {5})));
  EXPECT_TRUE(fails(ids, 1, make_tensor(DType::i32, {8})));
  EXPECT_TRUE(fails(ids, 1, make_tensor(DType::i64, {6})));
  EXPECT_TRUE(fails(ids, 1, TensorView{}));
  EXPECT_TRUE(fails(ids, 0, position));
  EXPECT_TRUE(fails(make_tensor(DType::i64, {3, 2}), 1, position));
  EXPECT_TRUE(fails(make_tensor(DType::i32, {6}), 1, position));
  EXPECT_TRUE(fails(make_tensor(DType::i32, {6, 0}), 1, make_tensor(DType::i32, {0})));
}

TEST(PermuteSort, MapsGiveOneItemPerTrueEntry) {
  auto context = permute_context();
  Tensor map = u8_tensor({3, 3}, {1, 1, 0, 0, 0, 0, 1, 1, 1}), position = make_tensor(DType::i32, {5});
  auto counts = sort_by_map(*context, map, position);
  ASSERT_TRUE(counts.ok()) << counts.status().to_string();
  EXPECT_EQ(*counts, (std::vector<int64_t>{2, 2, 1}));
  EXPECT_EQ(to_vector(position), (std::vector<double>{0, 2, 1, 3, 4}));

  auto wrong = sort_by_map(*context, map, make_tensor(DType::i32, {9}));
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.status().message().find("i32 (5)"), std::string::npos) << wrong.status().message();
  auto none = sort_by_map(*context, u8_tensor({2, 3}, {0, 0, 0, 0, 0, 0}), make_tensor(DType::i32, {0}));
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(*none, (std::vector<int64_t>{0, 0, 0}));
  EXPECT_TRUE(sort_by_map(*context, make_tensor(DType::u8, {0, 3}), make_tensor(DType::i32, {0})).ok());
}

TEST(PermuteSort, KeptRows) {
  EXPECT_EQ(num_kept_rows(10, 0), 10);
  EXPECT_EQ(num_kept_rows(10, 4), 4);
  EXPECT_EQ(num_kept_rows(10, 14), 10);
  EXPECT_EQ(num_kept_rows(10, -4), 6);
  EXPECT_EQ(num_kept_rows(10, -14), 0);
  EXPECT_EQ(num_kept_rows(0, 3), 0);
}

}  // namespace
}  // namespace plait::test
