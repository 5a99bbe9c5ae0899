/// permute and its backward: data that names its origin, any strides, dropped rows, adjointness, errors.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/grouped_matmul_support.h"
#include "ops/permute_support.h"

namespace plait::test {
namespace {

/// x[t, j] = 100 t + j: a misrouted element says where it came from.
Tensor origin_tensor(DType type, int64_t num_tokens, int64_t hidden) {
  Tensor x = make_tensor(type, {num_tokens, hidden});
  for (int64_t i = 0; i < num_tokens * hidden; ++i) set(x, i, static_cast<double>(i / hidden * 100 + i % hidden));
  return x;
}

TEST(Permute, RowsCarryTheirOrigin) {
  for (int threads : {1, 2, 8}) {
    auto context = permute_context(threads);
    for (DType type : {DType::f32, DType::f16, DType::i32, DType::i64}) {
      Routing r = random_routing(*context, 20, 3, 4, 1);
      Tensor x = origin_tensor(type, 20, 7), rows = make_tensor(type, {60, 7});
      Status status = permute(*context, x, r.position, 3, rows);
      ASSERT_TRUE(status.ok()) << status.to_string();
      for (int64_t i = 0; i < 60; ++i) {
        for (int64_t j = 0; j < 7; ++j) ASSERT_EQ(get(rows, r.position.as<int32_t>()[i] * 7 + j), i / 3 * 100 + j);
      }
    }
  }
}

TEST(Permute, AnyLayout) {
  auto context = permute_context(2);
  for (DType type : {DType::f32, DType::bf16}) {
    Routing r = random_routing(*context, 33, 2, 5, 2);
    Tensor x = random_tensor(type, {33, 19}, 3), expected = make_tensor(type, {66, 19});
    ASSERT_TRUE(permute(*context, x, r.position, 2, expected).ok());
    for (Layout in : all_layouts) {
      for (Layout out : all_layouts) {
        Tensor rows = blank_in_layout(type, {66, 19}, out);
        Status status = permute(*context, in_layout(x, in), r.position, 2, rows);
        ASSERT_TRUE(status.ok()) << status.to_string();
        EXPECT_BITS_EQ(rows.view, expected.view);
      }
    }
  }
}

TEST(Permute, ExpandedInput) {
  auto context = permute_context();
  Routing r = random_routing(*context, 4, 2, 3, 4);
  Tensor one = tensor_of(DType::f32, {1}, {3.5});
  ConstTensorView expanded = one;
  expanded.num_dims = 2;
  expanded.shape = {4, 5};
  expanded.strides = {0, 0};
  Tensor rows = make_tensor(DType::f32, {8, 5});
  ASSERT_TRUE(permute(*context, expanded, r.position, 2, rows).ok());
  EXPECT_EQ(to_vector(rows), std::vector<double>(40, 3.5));
  Tensor dx = make_tensor(DType::f32, {4, 5});
  expanded.shape = {8, 5};
  ASSERT_TRUE(permute_backward(*context, expanded, r.position, 2, {}, 0, dx).ok());
  EXPECT_EQ(to_vector(dx), std::vector<double>(20, 7.0));
}

TEST(Permute, MovesBitsUntouched) {
  auto context = permute_context();
  Tensor x = make_tensor(DType::f32, {2, 2});
  const uint32_t bits[] = {0x7f800001, 0x00000001, 0xffc12345, 0x80000003};  // a signalling NaN, denormals, a payload
  std::memcpy(x.view.data, bits, sizeof bits);
  Routing r = route_by(*context, 2, 1, 2, {1, 0});
  Tensor rows = make_tensor(DType::f32, {2, 2});
  ASSERT_TRUE(permute(*context, x, r.position, 1, rows).ok());
  EXPECT_EQ(std::memcmp(rows.view.at(0), bits + 2, 8), 0);
  EXPECT_EQ(std::memcmp(rows.view.at(1), bits, 8), 0);
}

TEST(Permute, DroppedAndUnnamedRows) {
  auto context = permute_context();
  Tensor x = origin_tensor(DType::f32, 3, 2);
  Tensor position = i32_tensor({6}, {0, 5, -1, 1, 4, 100});
  Tensor rows = make_tensor(DType::f32, {4, 2});
  ASSERT_TRUE(permute(*context, x, position, 2, rows).ok());
  EXPECT_EQ(to_vector(rows), (std::vector<double>{0, 1, 100, 101, 0, 0, 0, 0})) << "rows 2 and 3 belong to nobody";

  Tensor drows = tensor_of(DType::f32, {4, 2}, {1, 2, 3, 4, NAN, NAN, NAN, NAN}), dx = make_tensor(DType::f32, {3, 2});
  ASSERT_TRUE(permute_backward(*context, drows, position, 2, {}, 0, dx).ok());
  EXPECT_EQ(to_vector(dx), (std::vector<double>{1, 2, 3, 4, 0, 0}));
}

TEST(Permute, NoTokensNoRows) {
  auto context = permute_context(2);
  Tensor none = make_tensor(DType::i32, {0});
  EXPECT_TRUE(permute(*context, TensorView(nullptr, DType::bf16, {0, 8}), none, 2, TensorView(nullptr, DType::bf16, {0, 8})).ok());
  EXPECT_TRUE(permute_backward(*context, TensorView(nullptr, DType::bf16, {0, 8}), none, 2, {}, 0, TensorView(nullptr, DType::bf16, {0, 8})).ok());
  Tensor x = origin_tensor(DType::f32, 2, 3), dropped = i32_tensor({2}, {-1, -1});
  EXPECT_TRUE(permute(*context, x, dropped, 1, TensorView(nullptr, DType::f32, {0, 3})).ok());
  Tensor dx = make_tensor(DType::f32, {2, 3});
  EXPECT_TRUE(permute_backward(*context, TensorView(nullptr, DType::f32, {0, 3}), dropped, 1, {}, 0, dx).ok());
  EXPECT_EQ(to_vector(dx), std::vector<double>(6, 0.0));
}

TEST(Permute, BackwardAddsSlotsAscendingOrByTree) {
  auto context = permute_context();
  // Rows by expert: 1e8, 1, -1e8, 1; slots in the order of ids.
  Tensor drows = tensor_of(DType::f32, {4, 1}, {1e8, 1, -1e8, 1}), dx = make_tensor(DType::f32, {1, 1});
  Routing r = route_by(*context, 1, 4, 4, {2, 0, 3, 1});
  ASSERT_TRUE(permute_backward(*context, drows, r.position, 4, {}, 0, dx).ok());
  EXPECT_EQ(get(dx, 0), 2);
  ASSERT_TRUE(permute_backward(*context, drows, r.position, 4, r.ids, 4, dx).ok());
  EXPECT_EQ(get(dx, 0), 0);
}

/// <permute(x), d> = <x, permute_backward(d)>, exactly, in small integers.
TEST(Permute, BackwardIsTheAdjoint) {
  auto context = permute_context(2);
  for (bool tree : {false, true}) {
    Routing r = random_routing(*context, 50, 4, 6, 8);
    int64_t kept = num_kept_rows(200, -13);
    Tensor x = integer_tensor(DType::f32, {50, 9}, 1), d = integer_tensor(DType::f32, {kept, 9}, 2);
    Tensor rows = make_tensor(DType::f32, {kept, 9}), dx = make_tensor(DType::f32, {50, 9});
    ASSERT_TRUE(permute(*context, x, r.position, 4, rows).ok());
    ASSERT_TRUE(permute_backward(*context, d, r.position, 4, tree ? ConstTensorView(r.ids) : ConstTensorView{}, 6, dx).ok());
    double left = 0, right = 0;
    for (int64_t i = 0; i < kept * 9; ++i) left += get(rows, i) * get(d, i);
    for (int64_t i = 0; i < 50 * 9; ++i) right += get(x, i) * get(dx, i);
    EXPECT_EQ(left, right);
    EXPECT_NE(left, 0);
  }
}

TEST(Permute, ErrorsNameTheValues) {
  auto context = permute_context();
  auto fails_with = [](const Status& status, const char* text) {
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << status.to_string();
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  Tensor x = origin_tensor(DType::f32, 2, 3), rows = make_tensor(DType::f32, {4, 3}), position = i32_tensor({4}, {0, 1, 2, 3});
  fails_with(permute(*context, x, position, 0, rows), "k is 0");
  fails_with(permute(*context, x, position, 3, rows), "i32 (3)");
  fails_with(permute(*context, x, position, 1, rows), "x has 2 rows, the entries belong to 4 tokens");
  fails_with(permute(*context, x, make_tensor(DType::i64, {4}), 2, rows), "position is i64 (4)");
  fails_with(permute(*context, x, position, 2, make_tensor(DType::f32, {4, 2})), "columns must be equal");
  fails_with(permute(*context, x, position, 2, make_tensor(DType::bf16, {4, 3})), "types and columns");
  fails_with(permute(*context, x.view[0], position, 2, rows), "two dimensions");
  fails_with(permute(*context, x, i32_tensor({4}, {0, 3, 2, 3}), 2, rows), "entries 1 and 3 of position both name row 3");
  fails_with(permute_backward(*context, origin_tensor(DType::i32, 4, 3), position, 2, {}, 0, origin_tensor(DType::i32, 2, 3)), "floating type");
  Tensor dx = make_tensor(DType::f32, {2, 3});
  fails_with(permute_backward(*context, rows, position, 2, i32_tensor({2, 2}, {0, 1, 5, 0}), 4, dx), "token 1, slot 0 is 5");
  fails_with(permute_backward(*context, rows, position, 2, i32_tensor({4, 1}, {0, 1, 2, 0}), 4, dx), "i32 (2, 2)");
}

}  // namespace
}  // namespace plait::test
