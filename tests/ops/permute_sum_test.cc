/// unpermute, forward and backward: orders of addition, weights, absent entries, gradients, any threads and strides.

#include <gtest/gtest.h>

#include <cmath>

#include "base/float_mode.h"
#include "kernels/elementwise.h"
#include "ops/grouped_matmul_support.h"
#include "ops/permute_support.h"

namespace plait::test {
namespace {

/// y for the definition written out: slots ascending, or by tree where `tree`.
Tensor oracle_unpermute(const Routing& r, const Tensor& rows, const Tensor& weights, bool tree) {
  FloatMode mode;
  int64_t hidden = rows.view.shape[1];
  Tensor y = make_tensor(rows.view.dtype, {r.num_tokens, hidden});
  for (int64_t t = 0; t < r.num_tokens; ++t) {
    for (int64_t j = 0; j < hidden; ++j) {
      std::vector<OracleTerm> terms;
      for (int64_t slot = 0; slot < r.k; ++slot) {
        int64_t i = t * r.k + slot, row = r.position.as<int32_t>()[i];
        if (row < 0 || row >= rows.view.shape[0]) continue;
        auto product = static_cast<float>(get(rows, row * hidden + j));
        if (weights.defined()) {
          auto weight = static_cast<float>(get(weights, i));
          if (kernels::is_absent(weight)) continue;
          product = weight * product;
        }
        terms.push_back({r.ids.as<int32_t>()[i], product});
      }
      float sum = 0;
      if (tree) {
        sum = oracle_tree(terms, r.num_experts);
      } else {
        for (size_t s = 0; s < terms.size(); ++s) sum = s == 0 ? terms[0].product : sum + terms[s].product;
      }
      set(y, t * hidden + j, sum);
    }
  }
  return y;
}

Status run(const Context& context, const Routing& r, const ConstTensorView& rows, const Tensor& weights, bool tree, const TensorView& y) {
  return unpermute(context, rows, r.position, r.k, weights, tree ? ConstTensorView(r.ids) : ConstTensorView{}, r.num_experts, y);
}

TEST(Unpermute, HasTheBitsOfTheDefinition) {
  struct {
    int64_t num_tokens, k, num_experts, hidden;
  } cases[] = {{9, 4, 7, 70}, {5, 1, 1, 3}, {6, 3, 1, 130}, {4, 8, 128, 33}, {3, 24, 600, 5}, {0, 2, 4, 8}};
  for (int threads : {1, 2, 8}) {
    auto context = permute_context(threads);
    for (const auto& c : cases) {
      Routing r = random_routing(*context, c.num_tokens, c.k, c.num_experts, 31);
      for (DType type : {DType::f32, DType::bf16, DType::f16}) {
        Tensor rows = random_tensor(type, {c.num_tokens * c.k, c.hidden}, 32);
        Tensor weights = random_tensor(DType::f32, {c.num_tokens, c.k}, 33);
        for (int64_t i = 0; i < c.num_tokens * c.k; i += 5) set(weights, i, i % 2 == 0 ? 0.0 : -0x1p-130);  // absent entries
        for (const Tensor& w : {weights, Tensor{}}) {
          for (bool tree : {false, true}) {
            Tensor y = make_tensor(type, {c.num_tokens, c.hidden});
            Status status = run(*context, r, rows, w, tree, y);
            ASSERT_TRUE(status.ok()) << status.to_string();
            ASSERT_EQ(bit_difference(y, oracle_unpermute(r, rows, w, tree)), "")
                << name(type) << " k=" << c.k << " E=" << c.num_experts << " tree " << tree;
          }
        }
      }
    }
  }
}

TEST(Unpermute, SlotOrderAndTreeOrderDiffer) {
  auto context = permute_context();
  Tensor rows = tensor_of(DType::f32, {4, 1}, {1e8, 1, -1e8, 1}), weights = tensor_of(DType::f32, {1, 4}, {1, 1, 1, 1});
  struct {
    std::vector<int> ids;
    double by_slot, by_tree;
  } cases[] = {{{0, 1, 2, 3}, 1, 0}, {{2, 0, 3, 1}, 2, 0}};
  for (const auto& c : cases) {
    Routing r = route_by(*context, 1, 4, 4, c.ids);
    Tensor y = make_tensor(DType::f32, {1, 1});
    ASSERT_TRUE(run(*context, r, rows, weights, false, y).ok());
    EXPECT_EQ(get(y, 0), c.by_slot);
    ASSERT_TRUE(run(*context, r, rows, weights, true, y).ok());
    EXPECT_EQ(get(y, 0), c.by_tree);
  }
}

TEST(Unpermute, SumsInFloat32) {
  auto context = permute_context();
  Tensor rows = tensor_of(DType::bf16, {3, 1}, {256, 1, 1}), weights = tensor_of(DType::f32, {1, 3}, {1, 1, 1}), y = make_tensor(DType::bf16, {1, 1});
  Routing r = route_by(*context, 1, 3, 3, {0, 1, 2});
  for (bool tree : {false, true}) {
    ASSERT_TRUE(run(*context, r, rows, weights, tree, y).ok());
    EXPECT_EQ(get(y, 0), 258);
  }
}

/// Weights belong to flat entries, not to tokens.
TEST(Unpermute, WeightOfEachEntry) {
  auto context = permute_context();
  Routing r = route_by(*context, 2, 2, 2, {1, 0, 0, 1});
  Tensor rows = tensor_of(DType::f32, {4, 1}, {1, 1, 1, 1}), weights = tensor_of(DType::f32, {2, 2}, {1, 10, 100, 1000});
  Tensor y = make_tensor(DType::f32, {2, 1}), dy = tensor_of(DType::f32, {2, 1}, {1, 1});
  ASSERT_TRUE(run(*context, r, rows, weights, false, y).ok());
  EXPECT_EQ(to_vector(y), (std::vector<double>{11, 1100}));
  Tensor drows = make_tensor(DType::f32, {4, 1}), dweights = make_tensor(DType::f32, {2, 2});
  ASSERT_TRUE(unpermute_backward(*context, dy, rows, r.position, 2, weights, drows, dweights).ok());
  EXPECT_EQ(to_vector(dweights), (std::vector<double>{1, 1, 1, 1}));
  EXPECT_EQ(to_vector(drows), (std::vector<double>{10, 100, 1, 1000}));
}

TEST(Unpermute, NanUnderAnAbsentWeightDoesNotSpread) {
  auto context = permute_context();
  Routing r = route_by(*context, 1, 3, 3, {2, 0, 1});
  Tensor rows = tensor_of(DType::f32, {3, 1}, {NAN, 5, INFINITY}), weights = tensor_of(DType::f32, {1, 3}, {-0.0, 0, 2});
  Tensor y = make_tensor(DType::f32, {1, 1});
  for (bool tree : {false, true}) {
    ASSERT_TRUE(run(*context, r, rows, weights, tree, y).ok());
    EXPECT_EQ(get(y, 0), 10);
  }
  set(weights, 2, 0);
  ASSERT_TRUE(run(*context, r, rows, weights, true, y).ok());
  EXPECT_EQ(get(y, 0), 0);
  EXPECT_FALSE(std::signbit(get(y, 0)));
  set(weights, 1, 1);  // NaN with a weight that counts
  ASSERT_TRUE(run(*context, r, rows, weights, true, y).ok());
  EXPECT_TRUE(std::isnan(get(y, 0)));

  // Backward: the weight's gradient is still computed, the row's is zero even where dy is NaN.
  Tensor dy = tensor_of(DType::f32, {1, 1}, {NAN}), drows = make_tensor(DType::f32, {3, 1}), dweights = make_tensor(DType::f32, {1, 3});
  set(weights, 1, 0);
  ASSERT_TRUE(unpermute_backward(*context, dy, rows, r.position, 3, weights, drows, dweights).ok());
  EXPECT_EQ(to_vector(drows), (std::vector<double>{0, 0, 0}));
  EXPECT_TRUE(std::isnan(get(dweights, 0)));
}

TEST(Unpermute, AnyLayoutAndThreads) {
  auto one = permute_context(1);
  Routing r = random_routing(*one, 31, 3, 6, 5);
  Tensor rows = random_tensor(DType::bf16, {93, 21}, 6), dy = random_tensor(DType::bf16, {31, 21}, 7),
         weights = random_tensor(DType::f32, {31, 3}, 8);
  Tensor y = make_tensor(DType::bf16, {31, 21}), drows = make_tensor(DType::bf16, {93, 21}), dweights = make_tensor(DType::f32, {31, 3});
  ASSERT_TRUE(run(*one, r, rows, weights, true, y).ok());
  ASSERT_TRUE(unpermute_backward(*one, dy, rows, r.position, 3, weights, drows, dweights).ok());
  for (int threads : {1, 2, 8}) {
    auto context = permute_context(threads);
    for (Layout in : all_layouts) {
      for (Layout out : all_layouts) {
        Tensor y2 = blank_in_layout(DType::bf16, {31, 21}, out);
        Tensor weights_in = in_layout(weights, out);
        ASSERT_TRUE(run(*context, r, in_layout(rows, in), weights_in, true, y2).ok());
        EXPECT_BITS_EQ(y2.view, y.view);
        Tensor drows2 = blank_in_layout(DType::bf16, {93, 21}, out), dweights2 = blank_in_layout(DType::f32, {31, 3}, in);
        ASSERT_TRUE(unpermute_backward(*context, in_layout(dy, in), in_layout(rows, out), r.position, 3, weights_in, drows2, dweights2).ok());
        EXPECT_BITS_EQ(drows2.view, drows.view);
        EXPECT_BITS_EQ(dweights2.view, dweights.view);
      }
    }
  }
}

/// <unpermute(rows, w), dy> = <rows, drows> = sum w dw, exactly, in small integers; dropped rows included.
TEST(Unpermute, BackwardIsTheAdjoint) {
  auto context = permute_context(2);
  Routing r = random_routing(*context, 40, 4, 5, 9);
  int64_t kept = num_kept_rows(160, 149);
  Tensor rows = integer_tensor(DType::f32, {kept, 11}, 1), dy = integer_tensor(DType::f32, {40, 11}, 2),
         weights = integer_tensor(DType::f32, {40, 4}, 3);
  Tensor y = make_tensor(DType::f32, {40, 11}), drows = make_tensor(DType::f32, {kept, 11}), dweights = make_tensor(DType::f32, {40, 4});
  for (bool tree : {false, true}) {
    ASSERT_TRUE(run(*context, r, rows, weights, tree, y).ok());
    ASSERT_TRUE(unpermute_backward(*context, dy, rows, r.position, 4, weights, drows, dweights).ok());
    double forward = 0, by_rows = 0, by_weights = 0;
    for (int64_t i = 0; i < 40 * 11; ++i) forward += get(y, i) * get(dy, i);
    for (int64_t i = 0; i < kept * 11; ++i) by_rows += get(rows, i) * get(drows, i);
    for (int64_t i = 0; i < 160; ++i) by_weights += get(weights, i) * get(dweights, i);
    EXPECT_EQ(forward, by_rows);
    EXPECT_EQ(forward, by_weights);
    EXPECT_NE(forward, 0);
  }
}

TEST(Unpermute, BackwardWithoutWeightsAndWithoutSomeResults) {
  auto context = permute_context();
  Tensor dy = tensor_of(DType::f32, {2, 2}, {1, 2, 3, 4}), position = i32_tensor({4}, {3, 9, 0, -1});
  Tensor drows = make_tensor(DType::f32, {4, 2});
  ASSERT_TRUE(unpermute_backward(*context, dy, {}, position, 2, {}, drows, {}).ok());
  EXPECT_EQ(to_vector(drows), (std::vector<double>{3, 4, 0, 0, 0, 0, 1, 2})) << "rows that nobody names become zeros";
  Tensor rows = tensor_of(DType::f32, {4, 2}, {1, 1, NAN, NAN, NAN, NAN, 2, 2}), dweights = make_tensor(DType::f32, {2, 2});
  ASSERT_TRUE(unpermute_backward(*context, dy, rows, position, 2, {}, {}, dweights).ok());
  EXPECT_EQ(to_vector(dweights), (std::vector<double>{6, 0, 7, 0}));
}

TEST(Unpermute, Errors) {
  auto context = permute_context();
  auto fails_with = [](const Status& status, const char* text) {
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << status.to_string();
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  Tensor rows = random_tensor(DType::f32, {4, 3}, 1), y = make_tensor(DType::f32, {2, 3}), position = i32_tensor({4}, {0, 1, 2, 3});
  Tensor weights = random_tensor(DType::f32, {2, 2}, 2), ids = i32_tensor({2, 2}, {0, 1, 1, -1});
  fails_with(unpermute(*context, rows, position, 2, make_tensor(DType::f32, {4, 1}), {}, 0, y), "weights is f32 (4, 1)");
  fails_with(unpermute(*context, rows, position, 2, make_tensor(DType::bf16, {2, 2}), {}, 0, y), "f32 (2, 2)");
  fails_with(unpermute(*context, rows, position, 2, weights, ids, 2, y), "token 1, slot 1 is -1");
  fails_with(unpermute(*context, rows, position, 2, weights, {}, 0, make_tensor(DType::f32, {3, 3})), "y has 3 rows");
  Tensor drows = make_tensor(DType::f32, {4, 3});
  fails_with(unpermute_backward(*context, y, {}, position, 2, weights, drows, make_tensor(DType::f32, {2, 2})), "rows is no tensor");
  fails_with(unpermute_backward(*context, y, rows, i32_tensor({4}, {0, 1, 1, 3}), 2, weights, drows, {}), "both name row 1");
  for (double value : to_vector(drows)) EXPECT_TRUE(std::isnan(value)) << "nothing is written";

  // An id outside the experts is no fault where its entry takes no part.
  Tensor one_less = i32_tensor({4}, {0, 1, 2, -1});
  EXPECT_TRUE(unpermute(*context, rows, one_less, 2, weights, ids, 2, y).ok());
}

}  // namespace
}  // namespace plait::test
