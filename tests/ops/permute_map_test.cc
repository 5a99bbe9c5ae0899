/// The routing-map forms against a small case by hand and against the forms with ids.

#include <gtest/gtest.h>

#include "ops/permute_support.h"

namespace plait::test {
namespace {

TEST(PermuteMap, TokensWithDifferentNumbersOfExperts) {
  auto context = permute_context();
  Tensor map = u8_tensor({3, 3}, {1, 1, 0, 0, 0, 0, 1, 1, 1}), position = make_tensor(DType::i32, {5});
  ASSERT_TRUE(sort_by_map(*context, map, position).ok());
  Tensor x = tensor_of(DType::f32, {3, 1}, {1, 2, 3}), rows = make_tensor(DType::f32, {5, 1}), y = make_tensor(DType::f32, {3, 1});
  ASSERT_TRUE(permute_map(*context, x, map, position, rows).ok());
  EXPECT_EQ(to_vector(rows), (std::vector<double>{1, 3, 1, 3, 3}));
  ASSERT_TRUE(unpermute_map(*context, rows, map, position, {}, y).ok());
  EXPECT_EQ(to_vector(y), (std::vector<double>{2, 0, 9}));
  Tensor ones = tensor_of(DType::f32, {5, 1}, {1, 1, 1, 1, 1}), dx = make_tensor(DType::f32, {3, 1});
  ASSERT_TRUE(permute_map_backward(*context, ones, map, position, dx).ok());
  EXPECT_EQ(to_vector(dx), (std::vector<double>{2, 0, 3}));

  Tensor weights = tensor_of(DType::f32, {3, 3}, {1, 2, 100, 100, 100, 100, 4, 8, 16}), dweights = make_tensor(DType::f32, {3, 3});
  ASSERT_TRUE(unpermute_map(*context, rows, map, position, weights, y).ok());
  EXPECT_EQ(to_vector(y), (std::vector<double>{3, 0, 84}));
  Tensor dy = tensor_of(DType::f32, {3, 1}, {10, 20, 30}), drows = make_tensor(DType::f32, {5, 1});
  ASSERT_TRUE(unpermute_map_backward(*context, dy, rows, map, position, weights, drows, dweights).ok());
  EXPECT_EQ(to_vector(drows), (std::vector<double>{10, 120, 20, 240, 480}));
  EXPECT_EQ(to_vector(dweights), (std::vector<double>{10, 10, 0, 0, 0, 0, 90, 90, 90}));
}

TEST(PermuteMap, NothingChosen) {
  auto context = permute_context();
  Tensor map = u8_tensor({2, 3}, {0, 0, 0, 0, 0, 0}), position = make_tensor(DType::i32, {0});
  Tensor x = tensor_of(DType::f32, {2, 2}, {1, 2, 3, 4}), y = make_tensor(DType::f32, {2, 2}), dweights = make_tensor(DType::f32, {2, 3});
  TensorView no_rows(nullptr, DType::f32, {0, 2});
  EXPECT_TRUE(permute_map(*context, x, map, position, no_rows).ok());
  ASSERT_TRUE(unpermute_map(*context, no_rows, map, position, {}, y).ok());
  EXPECT_EQ(to_vector(y), std::vector<double>(4, 0.0));
  ASSERT_TRUE(unpermute_map_backward(*context, x, no_rows, map, position, {}, no_rows, dweights).ok());
  EXPECT_EQ(to_vector(dweights), std::vector<double>(6, 0.0));
  TensorView no_tokens(nullptr, DType::f32, {0, 2});
  EXPECT_TRUE(permute_map(*context, no_tokens, make_tensor(DType::u8, {0, 3}), position, no_rows).ok());
}

/// With ids ascending in each token a map says the same.
TEST(PermuteMap, EqualsTheFormWithIds) {
  auto context = permute_context(2);
  constexpr int64_t num_tokens = 23, k = 3, num_experts = 7, hidden = 18;
  Random random(4);
  std::vector<int> ids, map(num_tokens * num_experts, 0);
  for (int64_t t = 0; t < num_tokens; ++t) {
    int64_t first = random.below(3), second = 3 + random.below(2), third = 5 + random.below(2);
    for (int64_t id : {first, second, third}) {
      ids.push_back(static_cast<int>(id));
      map[static_cast<size_t>(t * num_experts + id)] = 1;
    }
  }
  Routing r = route_by(*context, num_tokens, k, num_experts, ids);
  Tensor map_tensor = u8_tensor({num_tokens, num_experts}, map), position = make_tensor(DType::i32, {num_tokens * k});
  auto counts = sort_by_map(*context, map_tensor, position);
  ASSERT_TRUE(counts.ok());
  EXPECT_EQ(*counts, r.counts);
  EXPECT_BITS_EQ(position, r.position);

  Tensor rows = random_tensor(DType::bf16, {num_tokens * k, hidden}, 1), weights = random_tensor(DType::f32, {num_tokens, k}, 2);
  Tensor map_weights = random_tensor(DType::f32, {num_tokens, num_experts}, 3), dy = random_tensor(DType::bf16, {num_tokens, hidden}, 5);
  for (int64_t i = 0; i < num_tokens * k; ++i) set(map_weights, i / k * num_experts + ids[static_cast<size_t>(i)], get(weights, i));
  Tensor y = make_tensor(DType::bf16, {num_tokens, hidden}), map_y = make_tensor(DType::bf16, {num_tokens, hidden});
  ASSERT_TRUE(unpermute(*context, rows, r.position, k, weights, {}, 0, y).ok());
  ASSERT_TRUE(unpermute_map(*context, rows, map_tensor, position, map_weights, map_y).ok());
  EXPECT_BITS_EQ(map_y, y);

  Tensor drows = make_tensor(DType::bf16, {num_tokens * k, hidden}), map_drows = make_tensor(DType::bf16, {num_tokens * k, hidden});
  Tensor dweights = make_tensor(DType::f32, {num_tokens, k}), map_dweights = make_tensor(DType::f32, {num_tokens, num_experts});
  ASSERT_TRUE(unpermute_backward(*context, dy, rows, r.position, k, weights, drows, dweights).ok());
  ASSERT_TRUE(unpermute_map_backward(*context, dy, rows, map_tensor, position, map_weights, map_drows, map_dweights).ok());
  EXPECT_BITS_EQ(map_drows, drows);
  for (int64_t i = 0; i < num_tokens * num_experts; ++i) {
    if (map[static_cast<size_t>(i)] != 0) continue;
    EXPECT_EQ(get(map_dweights, i), 0);
  }
  for (int64_t i = 0; i < num_tokens * k; ++i) {
    EXPECT_EQ(get(map_dweights, i / k * num_experts + ids[static_cast<size_t>(i)]), get(dweights, i));
  }
}

TEST(PermuteMap, WrongMaps) {
  auto context = permute_context();
  Tensor x = make_tensor(DType::f32, {2, 2}), position = make_tensor(DType::i32, {3}), rows = make_tensor(DType::f32, {3, 2});
  Status status = permute_map(*context, x, make_tensor(DType::i32, {2, 3}), position, rows);
  EXPECT_NE(status.message().find("routing map is i32 (2, 3)"), std::string::npos) << status.message();
  status = permute_map(*context, x, u8_tensor({2, 3}, {1, 0, 0, 0, 1, 0}), position, rows);
  EXPECT_NE(status.message().find("i32 (2)"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace plait::test
