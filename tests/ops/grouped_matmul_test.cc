#include "plait/grouped_matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/grouped_matmul_support.h"

namespace plait::test {
namespace {

using List = std::vector<int64_t>;
constexpr double inf = std::numeric_limits<double>::infinity();
const double nan = std::nan("");

class GroupedMatmul : public ::testing::Test {
 protected:
  Tensor multiply(const Tensor& x, const Tensor& weight, const List& list, const GroupedMatmulOptions& options = {}, const Tensor& bias = {}) const {
    Tensor y = make_tensor(x.view.dtype, {x.view.shape[0], weight.view.shape[2]});
    Status status = gmm(*context_, x, weight, list, y, options, bias);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return y;
  }
  void backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const List& list, const GroupedMatmulGradients& gradients) const {
    Status status = grouped_matmul_backward(*context_, dy, x, weight, list, gradients);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
  std::unique_ptr<Context> context_ = gmm_context(2);
};

void expect_values(const ConstTensorView& t, const std::vector<double>& values) { EXPECT_EQ(to_vector(t), values); }

TEST_F(GroupedMatmul, RowsBeyondTheListAreZerosAndNeverRead) {
  Tensor x = tensor_of(DType::f32, {5, 2}, {1, 0, 0, 1, 1, 1, inf, nan, 7, 7});
  Tensor weight = tensor_of(DType::f32, {2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  Tensor dy = tensor_of(DType::f32, {5, 2}, {1, 1, 1, 1, 1, 1, nan, nan, nan, nan});
  for (int repeat = 0; repeat < 3; ++repeat) {
    poison(*context_, 40);
    expect_values(multiply(x, weight, {2, 1}), {1, 2, 3, 4, 12, 14, 0, 0, 0, 0});
    Tensor dx = make_tensor(DType::f32, {5, 2});
    Tensor dw = make_tensor(DType::f32, {2, 2, 2});
    Tensor dbias = make_tensor(DType::f32, {2, 2});
    backward(dy, x, weight, {2, 1}, {dx, dw, dbias});
    expect_values(dx, {3, 7, 3, 7, 11, 15, 0, 0, 0, 0});
    expect_values(dw, {1, 1, 1, 1, 1, 1, 1, 1});
    expect_values(dbias, {2, 2, 1, 1});
  }
}

TEST_F(GroupedMatmul, GroupsWithoutRowsGetZeroGradients) {
  Tensor ones = tensor_of(DType::f32, {3, 2}, std::vector<double>(6, 1));
  Tensor dw = make_tensor(DType::f32, {4, 2, 2});
  poison(*context_, 64);
  ASSERT_TRUE(grouped_matmul_k(*context_, ones, ones, List{2, 0, 1, 0}, dw, false).ok());
  expect_values(dw, {2, 2, 2, 2, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0});

  Tensor none = make_tensor(DType::f32, {0, 2});
  Tensor weight = integer_tensor(DType::f32, {4, 2, 2}, 1);
  dw = make_tensor(DType::f32, {4, 2, 2});
  Tensor dbias = make_tensor(DType::f32, {4, 2});
  EXPECT_EQ(multiply(none, weight, {0, 0, 0, 0}).view.num_elements(), 0);
  backward(none, none, weight, {0, 0, 0, 0}, {make_tensor(DType::f32, {0, 2}), dw, dbias});
  expect_values(dw, std::vector<double>(16, 0));
  expect_values(dbias, std::vector<double>(8, 0));
}

TEST_F(GroupedMatmul, NullDataWhereThereAreNoRows) {
  ConstTensorView none(static_cast<const void*>(nullptr), DType::bf16, {0, 3});
  Tensor weight = integer_tensor(DType::bf16, {1, 3, 4}, 1);
  EXPECT_TRUE(grouped_matmul(*context_, none, weight, List{0}, {}, TensorView(nullptr, DType::bf16, {0, 4})).ok());
  Tensor dw = make_tensor(DType::bf16, {1, 3, 3});
  EXPECT_TRUE(grouped_matmul_k(*context_, none, none, List{0}, dw, false).ok());
  expect_values(dw, std::vector<double>(9, 0));
}

TEST_F(GroupedMatmul, AccumulatorsOfEmptyGroupsStayAsTheyAre) {
  Tensor ones = tensor_of(DType::f32, {1, 2}, {1, 1});
  Tensor dw = tensor_of(DType::f32, {4, 2, 2}, std::vector<double>(16, 5));
  dw.as<float>()[4] = -0.0F;
  dw.as<float>()[5] = 0x1p-140F;  // a denormal: untouched means untouched
  dw.as<float>()[6] = std::nanf("1");
  Tensor before = tensor_of(DType::f32, {4, 2, 2}, to_vector(dw));
  ASSERT_TRUE(grouped_matmul_k(*context_, ones, ones, List{1, 0, 0, 0}, dw, true).ok());
  expect_values(dw.view[0], {6, 6, 6, 6});
  EXPECT_BITS_EQ(dw.view.slice(1, 4), before.view.slice(1, 4));

  Tensor dbias = tensor_of(DType::f32, {4, 2}, {5, 5, 0x1p-140, -0.0, 5, 5, 5, 5});
  Tensor bias_before = tensor_of(DType::f32, {4, 2}, to_vector(dbias));
  ASSERT_TRUE(grouped_bias_gradient(*context_, ones, List{1, 0, 0, 0}, dbias, true).ok());
  expect_values(dbias.view[0], {6, 6});
  EXPECT_BITS_EQ(dbias.view.slice(1, 4), bias_before.view.slice(1, 4));
}

TEST_F(GroupedMatmul, OddSizesWithTransposedWeights) {
  Tensor x = make_tensor(DType::bf16, {3, 5});
  Tensor stored = make_tensor(DType::bf16, {2, 7, 5});
  for (int64_t i = 0; i < 15; ++i) set(x, i, static_cast<double>(i / 5 + i % 5));
  for (int64_t i = 0; i < 35; ++i) set(stored, i, i / 5 == i % 5 ? 1 : 0);
  for (int64_t i = 35; i < 70; ++i) set(stored, i, 1);
  Tensor weight{stored.buffer, stored.view.transposed(1, 2)};
  std::vector<double> expected{0, 1, 2, 3, 4, 0, 0};
  expected.insert(expected.end(), 7, 15);
  expected.insert(expected.end(), 7, 20);
  expect_values(multiply(x, weight, {1, 2}), expected);
}

TEST_F(GroupedMatmul, StridesOfZero) {
  Tensor memory = tensor_of(DType::f32, {4}, {1, 2, 3, 4});
  TensorView row = memory.view;
  row.num_dims = 2;
  row.shape = {1, 4};
  row.strides = {0, 1};
  Tensor x{memory.buffer, row};
  Tensor one_block = tensor_of(DType::f32, {1, 4, 2}, std::vector<double>(8, 1));
  one_block.view.strides[0] = 0;
  expect_values(multiply(x, one_block, {1}), {10, 10});

  Tensor scalar = tensor_of(DType::f32, {1, 1}, {1});
  TensorView expanded = scalar.view;
  expanded.shape = {1, 2};
  expanded.strides = {0, 0};
  Tensor dx = make_tensor(DType::f32, {1, 4});
  Tensor dw = make_tensor(DType::f32, {1, 4, 2});
  Tensor dbias = make_tensor(DType::f32, {1, 2});
  backward({scalar.buffer, expanded}, x, one_block, {1}, {dx, dw, dbias});
  expect_values(dx, {2, 2, 2, 2});
  expect_values(dw, {1, 1, 2, 2, 3, 3, 4, 4});
  expect_values(dbias, {1, 1});

  // One row given to all rows, and one weight to all groups.
  TensorView same_row = x.view;
  same_row.shape[0] = 3;
  Tensor weight{one_block.buffer, one_block.view};
  weight.view.shape[0] = 2;
  expect_values(multiply({memory.buffer, same_row}, weight, {1, 2}), std::vector<double>(6, 10));
}

TEST_F(GroupedMatmul, ListsOfTheTypeThatWasNamed) {
  Tensor x = tensor_of(DType::f32, {4, 1}, {1, 1, 1, 1});
  Tensor weight = tensor_of(DType::f32, {2, 1, 1}, {10, 20});
  expect_values(multiply(x, weight, {2, 2}, {.group_list_type = GroupListType::cumulative}), {10, 10, 0, 0});
  expect_values(multiply(x, weight, {2, 2}), {10, 10, 20, 20});
  expect_values(multiply(x, weight, {1, 3}, {.group_list_type = GroupListType::pairs}), {20, 20, 20, 0});
}

TEST_F(GroupedMatmul, FaultyListsWriteNothing) {
  Tensor x = integer_tensor(DType::f32, {4, 3}, 1);
  Tensor weight = integer_tensor(DType::f32, {2, 3, 5}, 2);
  Tensor y = make_tensor(DType::f32, {4, 5});
  Tensor dw = make_tensor(DType::f32, {2, 3, 5});
  Tensor untouched_y = make_tensor(DType::f32, {4, 5});
  using Case = std::pair<List, GroupListType>;
  for (const auto& [list, type] :
       {Case{{3, 2}, GroupListType::cumulative}, Case{{2, 5}, GroupListType::cumulative}, Case{{-1, 5}, GroupListType::counts},
        Case{{1, 1, 1, 1}, GroupListType::counts}, Case{{1, 1, 0, 1}, GroupListType::pairs}}) {
    GroupedMatmulOptions options{.group_list_type = type};
    EXPECT_EQ(gmm(*context_, x, weight, list, y, options).code(), StatusCode::invalid_argument);
    EXPECT_EQ(grouped_matmul_k(*context_, x, y, list, dw, false, options).code(), StatusCode::invalid_argument);
    EXPECT_EQ(grouped_matmul_backward(*context_, y, x, weight, list, {.dw = dw}, options).code(), StatusCode::invalid_argument);
    EXPECT_EQ(grouped_bias_gradient(*context_, x, list, make_tensor(DType::f32, {2, 3}), false, options).code(), StatusCode::invalid_argument);
  }
  EXPECT_BITS_EQ(y, untouched_y);
}

TEST_F(GroupedMatmul, AccumulatesInFloat32) {
  Tensor x = tensor_of(DType::bf16, {1, 259}, std::vector<double>(259, 1));
  Tensor weight = tensor_of(DType::bf16, {1, 259, 1}, std::vector<double>(259, 1));
  expect_values(multiply(x, weight, {1}), {260});  // 259 rounded once; a bf16 accumulator would stop at 256
  Tensor y = make_tensor(DType::f32, {1, 1});
  ASSERT_TRUE(gmm(*context_, x, weight, {1}, y).ok());
  expect_values(y, {259});
  Tensor dw = make_tensor(DType::bf16, {1, 1, 1});
  Tensor column = tensor_of(DType::bf16, {259, 1}, std::vector<double>(259, 1));
  ASSERT_TRUE(grouped_matmul_k(*context_, column, column, List{259}, dw, false).ok());
  expect_values(dw, {260});
  Tensor dbias = make_tensor(DType::bf16, {1, 1});
  ASSERT_TRUE(grouped_bias_gradient(*context_, column, List{259}, dbias, false).ok());
  expect_values(dbias, {260});
}

TEST_F(GroupedMatmul, BiasOfEveryKind) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Tensor x = integer_tensor(dtype, {5, 3}, 1);
    Tensor weight = integer_tensor(dtype, {2, 3, 4}, 2);
    for (DType bias_type : {dtype, DType::f32}) {
      for (Layout layout : all_layouts) {
        Tensor bias = in_layout(integer_tensor(bias_type, {2, 4}, 3), layout);
        for (bool fused : {true, false}) {
          Tensor y = multiply(x, weight, {3, 1}, {.fused = fused}, bias);
          for (int64_t i = 0; i < 20; ++i) {
            EXPECT_EQ(get(y, i), oracle_forward(x, weight, {3, 1}, bias, i / 4, i % 4).value) << i;
          }
        }
      }
    }
  }
}

TEST_F(GroupedMatmul, PairwiseLists) {
  std::vector<Tensor> owners;
  std::vector<ConstTensorView> x, weight, bias;
  std::vector<TensorView> y;
  for (int64_t i = 0; i < 4; ++i) {
    int64_t m = i == 2 ? 0 : i + 1, k = 2 * i + 1, n = 5 - i;
    owners.push_back(integer_tensor(DType::bf16, {m, k}, 1));
    x.emplace_back(owners.back());
    owners.push_back(integer_tensor(DType::bf16, {n, k}, 2));
    weight.emplace_back(owners.back().view.transposed(0, 1));
    owners.push_back(integer_tensor(DType::bf16, {n}, 3));
    bias.push_back(i == 1 ? ConstTensorView() : ConstTensorView(owners.back()));
    owners.push_back(make_tensor(DType::bf16, {m, n}));
    y.emplace_back(owners.back());
  }
  ASSERT_TRUE(grouped_matmul_lists(*context_, x, weight, bias, y).ok());
  for (size_t i = 0; i < 4; ++i) {
    for (int64_t e = 0; e < y[i].num_elements(); ++e) {
      int64_t m = e / y[i].shape[1], n = e % y[i].shape[1];
      double expected = bias[i].defined() ? get(bias[i], n) : 0;
      for (int64_t k = 0; k < x[i].shape[1]; ++k) expected += get(x[i], m * x[i].shape[1] + k) * get(weight[i], k * y[i].shape[1] + n);
      EXPECT_EQ(get(y[i], e), expected);
    }
  }
  weight.pop_back();
  EXPECT_NE(grouped_matmul_lists(*context_, x, weight, bias, y).message().find("4 of x, 3 of weight"), std::string::npos);
  EXPECT_TRUE(grouped_matmul_lists(*context_, {}, {}, {}, {}).ok());
}

TEST_F(GroupedMatmul, ARowNeverDependsOnItsNeighbours) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    Tensor x = random_tensor(dtype, {64, 4099}, 1);
    Tensor weight = random_tensor(dtype, {1, 4099, 3}, 2);
    Tensor y = multiply(x, weight, {64});
    for (int threads : {1, 5, 8}) {
      Tensor again = make_tensor(dtype, {64, 3});
      ASSERT_TRUE(gmm(*gmm_context(threads), x, weight, {64}, again).ok());
      EXPECT_BITS_EQ(again, y);
    }
    for (int64_t m = 0; m < 64; ++m) {
      EXPECT_BITS_EQ(multiply({x.buffer, x.view.slice(m, m + 1)}, weight, {1}), y.view.slice(m, m + 1));
    }
  }
}

}  // namespace
}  // namespace plait::test
