#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/router_support.h"

namespace plait::test {
namespace {

struct BackwardCase {
  RouterConfig config;
  Tensor logits, bias, dweights;
};

Tensor run_backward(const Context& context, const BackwardCase& c, const Routed& routed, DType dtype, float loss_scale = 1.0F) {
  Tensor dlogits = make_tensor(dtype, {c.logits.view.shape[0], c.config.num_experts});
  Status status = route_backward(context, c.config, c.logits, routed.scores, routed.ids, routed.weights, c.dweights, loss_scale, dlogits);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return dlogits;
}

/// Central differences of the float64 oracle, the choice held fixed.
std::vector<double> differences(const BackwardCase& c, const Routed& routed) {
  std::vector<double> logits = to_vector(c.logits);
  std::vector<int> ids = ids_of(routed);
  std::vector<double> dweights = c.dweights.defined() ? to_vector(c.dweights) : std::vector<double>(ids.size());
  std::vector<double> gradient;
  constexpr double step = 1e-4;
  for (double& l : logits) {
    double kept = l;
    l = kept + step;
    double above = oracle_total(c.config, logits, ids, dweights).total;
    l = kept - step;
    double below = oracle_total(c.config, logits, ids, dweights).total;
    l = kept;
    gradient.push_back((above - below) / (2 * step));
  }
  return gradient;
}

void expect_equals_differences(const Context& context, const BackwardCase& c) {
  Routed routed = run_route(context, c.config, c.logits, c.bias);
  std::vector<double> expected = differences(c, routed);
  std::vector<double> found = to_vector(run_backward(context, c, routed, DType::f32));
  double largest = 1e-3;
  for (double g : expected) largest = std::max(largest, std::fabs(g));
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(found[i], expected[i], 3e-6 * largest) << "element " << i;
}

TEST(RouterBackward, EqualsFiniteDifferencesInEveryConvention) {
  auto context = router_context(2);
  uint64_t seed = 0;
  for (ScoreFunction score : {ScoreFunction::softmax, ScoreFunction::sigmoid, ScoreFunction::topk_softmax}) {
    for (bool norm_topk : {false, true}) {
      for (int64_t n_group : {1, 3}) {
        for (int losses = 0; losses < 4; ++losses) {
          RouterConfig config{.num_experts = 12,
                              .top_k = 3,
                              .score = score,
                              .norm_topk = norm_topk,
                              .scaling = 1.7F,
                              .n_group = n_group,
                              .topk_group = std::min<int64_t>(n_group, 2),
                              .aux_loss = losses & 1 ? 0.7F : 0.0F,
                              .aux_loss_times_k = n_group == 3,
                              .z_loss = losses & 2 ? 0.3F : 0.0F};
          ++seed;
          SCOPED_TRACE(seed);
          expect_equals_differences(*context, {config, random_tensor(DType::f32, {5, 12}, seed, -2, 2), random_tensor(DType::f32, {12}, seed + 100),
                                               random_tensor(DType::f32, {5, 3}, seed + 200)});
        }
      }
    }
  }
}

TEST(RouterBackward, LossesWithoutWeightGradient) {
  auto context = router_context();
  for (ScoreFunction score : {ScoreFunction::softmax, ScoreFunction::sigmoid, ScoreFunction::topk_softmax}) {
    RouterConfig config{.num_experts = 7, .top_k = 2, .score = score, .norm_topk = true, .aux_loss = 1, .z_loss = 0.5F};
    expect_equals_differences(*context, {config, random_tensor(DType::f32, {9, 7}, 3, -2, 2), {}, {}});
  }
}

TEST(RouterBackward, WorkedExample) {
  // p = 1/2, 1/4, 1/4; expert 0 chosen, dweight 1: dlogits = p * (d - 1/2) with d = 1, 0, 0.
  RouterConfig config{.num_experts = 3, .top_k = 1};
  BackwardCase c{config, tensor_of(DType::f32, {1, 3}, {std::log(2.0), 0, 0}), {}, tensor_of(DType::f32, {1, 1}, {1})};
  auto context = router_context();
  std::vector<double> found = to_vector(run_backward(*context, c, run_route(*context, config, c.logits), DType::f32));
  EXPECT_NEAR(found[0], 0.25, 1e-7);
  EXPECT_NEAR(found[1], -0.125, 1e-7);
  EXPECT_NEAR(found[2], -0.125, 1e-7);
}

TEST(RouterBackward, LossScaleMultipliesTheLossesOnly) {
  RouterConfig config{.num_experts = 6, .top_k = 2, .aux_loss = 0.5F, .z_loss = 0.25F};
  BackwardCase both{config, random_tensor(DType::f32, {8, 6}, 1), {}, random_tensor(DType::f32, {8, 2}, 2)};
  auto context = router_context();
  Routed routed = run_route(*context, config, both.logits);
  BackwardCase losses = both, weights = both;
  losses.dweights = {};
  std::vector<double> four = to_vector(run_backward(*context, both, routed, DType::f32, 4));
  std::vector<double> loss_part = to_vector(run_backward(*context, losses, routed, DType::f32, 1));
  std::vector<double> weight_part = to_vector(run_backward(*context, weights, routed, DType::f32, 0));
  for (size_t i = 0; i < four.size(); ++i) EXPECT_NEAR(four[i], 4 * loss_part[i] + weight_part[i], 1e-6);
}

TEST(RouterBackward, RoundsOnceToTheLogitsType) {
  auto context = router_context();
  for (DType dtype : {DType::bf16, DType::f16}) {
    RouterConfig config{.num_experts = 33, .top_k = 4, .norm_topk = true, .aux_loss = 0.1F};
    BackwardCase c{config, random_tensor(dtype, {20, 33}, 1, -3, 3), {}, random_tensor(DType::f32, {20, 4}, 2)};
    Routed routed = run_route(*context, config, c.logits);
    Tensor exact = run_backward(*context, c, routed, DType::f32);
    Tensor rounded = make_tensor(dtype, {20, 33});
    for (int64_t i = 0; i < 20 * 33; ++i) set(rounded, i, get(exact, i));
    EXPECT_BITS_EQ(run_backward(*context, c, routed, dtype), rounded);
  }
}

TEST(RouterBackward, MaskedExpertsAndEmptyScoresGetZero) {
  auto context = router_context();
  constexpr double inf = std::numeric_limits<double>::infinity();
  for (ScoreFunction score : {ScoreFunction::softmax, ScoreFunction::topk_softmax, ScoreFunction::sigmoid}) {
    for (bool norm_topk : {false, true}) {
      RouterConfig config{.num_experts = 4, .top_k = 3, .score = score, .norm_topk = norm_topk, .aux_loss = 1, .z_loss = 1};
      BackwardCase c{config, tensor_of(DType::f32, {2, 4}, {-inf, -inf, 1, 2, 0, 1, 2, -inf}), {}, random_tensor(DType::f32, {2, 3}, 1)};
      Routed routed = run_route(*context, config, c.logits);
      std::vector<double> found = to_vector(run_backward(*context, c, routed, DType::f32));
      for (double g : found) EXPECT_TRUE(std::isfinite(g));
      EXPECT_EQ(found[0], 0);
      EXPECT_EQ(found[1], 0);
      EXPECT_EQ(found[7], 0);
    }
  }
  RouterConfig config{.num_experts = 2, .top_k = 2, .score = ScoreFunction::sigmoid, .norm_topk = true, .aux_loss = 1};
  BackwardCase flushed{config, tensor_of(DType::f32, {1, 2}, {-120, -110}), {}, tensor_of(DType::f32, {1, 2}, {1, -1})};
  for (double g : to_vector(run_backward(*context, flushed, run_route(*context, config, flushed.logits), DType::f32))) EXPECT_EQ(g, 0);
}

TEST(RouterBackward, ErrorsNameTheValue) {
  auto context = router_context();
  RouterConfig config{.num_experts = 4, .top_k = 2};
  BackwardCase c{config, random_tensor(DType::bf16, {2, 4}, 1), {}, random_tensor(DType::f32, {2, 2}, 2)};
  Routed routed = run_route(*context, config, c.logits);
  auto message = [&](const Tensor& dlogits) {
    return route_backward(*context, config, c.logits, routed.scores, routed.ids, routed.weights, c.dweights, 1, dlogits).message();
  };
  EXPECT_NE(message(make_tensor(DType::f16, {2, 4})).find("dlogits"), std::string::npos);
  EXPECT_NE(message(make_tensor(DType::bf16, {2, 5})).find("dlogits"), std::string::npos);
  for (int bad : {-1, 4}) {
    routed.ids.as<int32_t>()[3] = bad;
    std::string text = message(make_tensor(DType::bf16, {2, 4}));
    EXPECT_NE(text.find("token 1, slot 1 is " + std::to_string(bad)), std::string::npos) << text;
  }
}

TEST(RouterBackward, NoTokens) {
  auto context = router_context();
  BackwardCase c{{.num_experts = 4, .top_k = 2, .aux_loss = 1}, make_tensor(DType::f32, {0, 4}), {}, make_tensor(DType::f32, {0, 2})};
  run_backward(*context, c, run_route(*context, c.config, c.logits), DType::f32);
}

}  // namespace
}  // namespace plait::test
