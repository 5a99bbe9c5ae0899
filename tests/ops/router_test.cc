#include "plait/router.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/router_support.h"

namespace plait::test {
namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
const double nan = std::nan("");

class Router : public ::testing::Test {
 protected:
  Routed route_rows(const RouterConfig& config, const std::vector<double>& logits, const std::vector<double>& bias = {}) const {
    auto num_tokens = static_cast<int64_t>(logits.size()) / config.num_experts;
    Tensor bias_tensor = bias.empty() ? Tensor{} : tensor_of(DType::f32, {config.num_experts}, bias);
    return run_route(*context_, config, tensor_of(DType::f32, {num_tokens, config.num_experts}, logits), bias_tensor);
  }
  void expect_routing(const Routed& routed, const std::vector<int>& ids, const std::vector<double>& weights) const {
    EXPECT_EQ(ids_of(routed), ids);
    std::vector<double> found = to_vector(routed.weights);
    ASSERT_EQ(found.size(), weights.size());
    for (size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(found[i], weights[i], 3e-7 * std::max(1.0, std::fabs(weights[i]))) << "entry " << i;
  }
  std::string error_of(const RouterConfig& config, const std::vector<double>& logits, int rank = -1) const {
    auto num_tokens = static_cast<int64_t>(logits.size()) / config.num_experts;
    Status status = route_status(*context_, config, tensor_of(DType::f32, {num_tokens, config.num_experts}, logits), {}, rank);
    EXPECT_EQ(status.rank(), rank);
    return status.message();
  }
  std::unique_ptr<Context> context_ = router_context();
};

TEST_F(Router, SoftmaxScoresOverAllExperts) {
  // exp: 1, 2, 4, 1 of 8.
  std::vector<double> logits{0, std::log(2), std::log(4), 0};
  RouterConfig config{.num_experts = 4, .top_k = 2};
  expect_routing(route_rows(config, logits), {2, 1}, {0.5, 0.25});
  config.norm_topk = true;
  expect_routing(route_rows(config, logits), {2, 1}, {2.0 / 3, 1.0 / 3});
  config.scaling = 3;
  expect_routing(route_rows(config, logits), {2, 1}, {2, 1});
}

TEST_F(Router, SigmoidScores) {
  // sigmoid: 1/2, 2/3, 4/5, 1/4.
  std::vector<double> logits{0, std::log(2), std::log(4), -std::log(3)};
  RouterConfig config{.num_experts = 4, .top_k = 3, .score = ScoreFunction::sigmoid};
  expect_routing(route_rows(config, logits), {2, 1, 0}, {0.8, 2.0 / 3, 0.5});
  config.top_k = 2;
  config.norm_topk = true;
  config.scaling = 2.5F;
  expect_routing(route_rows(config, logits), {2, 1}, {2.5 * 12 / 22, 2.5 * 10 / 22});
}

TEST_F(Router, TopkSoftmaxWeighsChosenLogitsOnly) {
  std::vector<double> logits{0, std::log(2), std::log(6), 0};
  RouterConfig config{.num_experts = 4, .top_k = 2, .score = ScoreFunction::topk_softmax};
  expect_routing(route_rows(config, logits), {2, 1}, {0.75, 0.25});
  // The bias moves expert 3 to the front of the choice; the weights know nothing of it.
  expect_routing(route_rows(config, logits, {0, 0, 0, 10}), {3, 2}, {1.0 / 7, 6.0 / 7});
}

TEST_F(Router, BiasSteersTheChoiceOnly) {
  std::vector<double> logits{0, std::log(2), std::log(4), 0};
  RouterConfig config{.num_experts = 4, .top_k = 2};
  expect_routing(route_rows(config, logits, {0.5, 0, 0, 0}), {0, 2}, {0.125, 0.5});
  expect_routing(route_rows(config, logits, {0, 0, -inf, 0}), {1, 0}, {0.25, 0.125});
  config.score = ScoreFunction::sigmoid;
  expect_routing(route_rows(config, logits, {0, 0, -1, 0.5}), {3, 1}, {0.5, 2.0 / 3});
}

TEST_F(Router, SoftmaxGroupCountsItsMaximum) {
  // Group 0 has the best expert, group 1 the better sum.
  std::vector<double> logits{5, 0, 4, 4};
  RouterConfig config{.num_experts = 4, .top_k = 2, .norm_topk = true, .n_group = 2, .topk_group = 1};
  double e = std::exp(-5.0);
  expect_routing(route_rows(config, logits), {0, 1}, {1 / (1 + e), e / (1 + e)});
}

TEST_F(Router, SigmoidGroupCountsItsTwoBest) {
  std::vector<double> logits{5, -5, -5, 1, 1, -5};
  RouterConfig config{.num_experts = 6, .top_k = 2, .score = ScoreFunction::sigmoid, .norm_topk = true, .n_group = 2, .topk_group = 1};
  EXPECT_EQ(ids_of(route_rows(config, logits)), (std::vector<int>{3, 4}));
  config.n_group = 6;  // groups of one expert: the value of the one
  config.topk_group = 2;
  EXPECT_EQ(ids_of(route_rows(config, logits)), (std::vector<int>{0, 3}));
}

TEST_F(Router, GroupTiesGoToTheSmallerGroup) {
  RouterConfig config{.num_experts = 6, .top_k = 2, .n_group = 3, .topk_group = 1};
  EXPECT_EQ(ids_of(route_rows(config, {0, 1, 1, 0, 0, 1})), (std::vector<int>{1, 0}));
  EXPECT_EQ(ids_of(route_rows(config, {0, 0, 1, 0, 0, 1})), (std::vector<int>{2, 3}));
}

TEST_F(Router, ExcludedGroupsNeverBeatNegativeValues) {
  RouterConfig config{.num_experts = 4, .top_k = 2, .score = ScoreFunction::sigmoid, .norm_topk = true, .n_group = 2, .topk_group = 1};
  expect_routing(route_rows(config, {0, 0, 0, 0}, {-0.7, -0.8, -0.9, -1.0}), {0, 1}, {0.5, 0.5});
  Routed flushed = route_rows(config, {-100, -100, -100, -100}, {-1, -1, -1, -1});
  EXPECT_EQ(ids_of(flushed), (std::vector<int>{0, 1}));
  for (double w : to_vector(flushed.weights)) EXPECT_TRUE(std::isfinite(w));
}

TEST_F(Router, MinusInfinityOfAChosenGroupDoesNotLetOthersIn) {
  RouterConfig config{.num_experts = 4, .top_k = 2, .score = ScoreFunction::topk_softmax, .n_group = 2, .topk_group = 1};
  expect_routing(route_rows(config, {1, 0, 5, -inf}), {2, 3}, {1, 0});
  expect_routing(route_rows(config, {-inf, 5, 1, 0}), {1, 0}, {1, 0});
}

TEST_F(Router, MaskedAndHugeLogitsAreLegal) {
  RouterConfig config{.num_experts = 4, .top_k = 3};
  expect_routing(route_rows(config, {-inf, -inf, 1, 2}), {3, 2, 0}, {0.7310586, 0.2689414, 0});
  config.top_k = 2;
  expect_routing(route_rows(config, {1000, 999, 0, 0}), {0, 1}, {0.7310586, 0.2689414});
}

TEST_F(Router, FaultyLogitsNameTokenAndRank) {
  RouterConfig config{.num_experts = 4, .top_k = 2};
  for (ScoreFunction score : {ScoreFunction::softmax, ScoreFunction::sigmoid, ScoreFunction::topk_softmax}) {
    config.score = score;
    std::string all_nan = error_of(config, {0, 1, 2, 3, nan, nan, nan, nan}, 1);
    EXPECT_NE(all_nan.find("token 1 on rank 1"), std::string::npos) << all_nan;
    std::string one_nan = error_of(config, {0, 1, 2, 3, 0, 1, nan, 2});
    EXPECT_NE(one_nan.find("token 1: the logit of expert 2 is NaN"), std::string::npos) << one_nan;
    EXPECT_EQ(one_nan.find("rank"), std::string::npos) << one_nan;
    EXPECT_NE(error_of(config, {0, 1, inf, 3}).find("token 0: the logit of expert 2 is +inf"), std::string::npos);
    EXPECT_NE(error_of(config, {0, 1, 2, 3, -inf, -inf, -inf, -inf}).find("token 1: every logit is -inf"), std::string::npos);
  }
}

TEST_F(Router, NamesTheFirstFaultyTokenWhateverTheThreads) {
  std::vector<double> logits(4 * 1000, 0.0);
  for (int t : {900, 333, 334, 777}) logits[static_cast<size_t>(4 * t + 1)] = nan;
  for (int threads : {1, 2, 8}) {
    Status status = route_status(*router_context(threads), {.num_experts = 4, .top_k = 2}, tensor_of(DType::f32, {1000, 4}, logits));
    EXPECT_NE(status.message().find("token 333"), std::string::npos) << status.message();
  }
}

TEST_F(Router, FaultyBiasIsAnError) {
  Tensor logits = tensor_of(DType::f32, {1, 2}, {0, 0});
  RouterConfig config{.num_experts = 2, .top_k = 1, .score = ScoreFunction::topk_softmax};
  EXPECT_NE(route_status(*context_, config, logits, tensor_of(DType::f32, {2}, {0, nan})).message().find("expert 1"), std::string::npos);
  EXPECT_NE(route_status(*context_, config, logits, tensor_of(DType::f32, {2}, {inf, 0})).message().find("expert 0"), std::string::npos);
  Status nothing_left = route_status(*context_, config, tensor_of(DType::f32, {1, 2}, {-inf, 0}), tensor_of(DType::f32, {2}, {0, -inf}));
  EXPECT_NE(nothing_left.message().find("token 0"), std::string::npos) << nothing_left.message();
}

TEST_F(Router, WrongShapesAreErrors) {
  RouterConfig config{.num_experts = 4, .top_k = 2};
  Tensor logits = tensor_of(DType::f32, {1, 4}, {0, 1, 2, 3});
  Tensor ids = make_tensor(DType::i32, {1, 2}), weights = make_tensor(DType::f32, {1, 2}), scores = make_tensor(DType::f32, {1, 4});
  auto message = [&](const Tensor& l, const Tensor& b, const Tensor& i, const Tensor& w, const Tensor& s) {
    return route(*context_, config, l, b, i, w, s).status().message();
  };
  EXPECT_NE(message(make_tensor(DType::f32, {1, 5}), {}, ids, weights, scores).find("num_experts = 4"), std::string::npos);
  EXPECT_NE(message(make_tensor(DType::i32, {1, 4}), {}, ids, weights, scores).find("logits"), std::string::npos);
  EXPECT_NE(message(logits, make_tensor(DType::f32, {3}), ids, weights, scores).find("choice bias"), std::string::npos);
  EXPECT_NE(message(logits, {}, make_tensor(DType::i64, {1, 2}), weights, scores).find("ids"), std::string::npos);
  EXPECT_NE(message(logits, {}, ids, make_tensor(DType::bf16, {1, 2}), scores).find("weights"), std::string::npos);
  EXPECT_NE(message(logits, {}, ids, weights, make_tensor(DType::f32, {2, 4})).find("scores"), std::string::npos);
  EXPECT_EQ(message(logits, {}, ids, weights, {}), "");  // scores may be left out
}

TEST_F(Router, SizesWithoutFixedLimits) {
  for (auto [num_experts, k] : {std::pair{1, 1}, {3, 3}, {7, 5}, {600, 24}, {257, 17}, {100, 100}, {70, 40}}) {
    for (ScoreFunction score : {ScoreFunction::softmax, ScoreFunction::sigmoid, ScoreFunction::topk_softmax}) {
      RouterConfig config{.num_experts = num_experts, .top_k = k, .score = score};
      Routed routed = run_route(*context_, config, random_tensor(DType::f32, {5, num_experts}, 7, -4, 4));
      for (int64_t t = 0; t < 5; ++t) {
        for (int64_t s = 0; s < k; ++s) {
          auto id = static_cast<int64_t>(get(routed.ids, t * k + s));
          ASSERT_TRUE(id >= 0 && id < num_experts);
          if (score != ScoreFunction::topk_softmax) {
            EXPECT_EQ(get(routed.weights, t * k + s), get(routed.scores, t * num_experts + id));
          }
          if (score == ScoreFunction::topk_softmax && k == num_experts) {
            EXPECT_NEAR(get(routed.weights, t * k + s), get(routed.scores, t * num_experts + id), 1e-6);
          }
        }
      }
    }
  }
}

TEST_F(Router, TiesGoToTheSmallerId) {
  RouterConfig config{.num_experts = 8, .top_k = 3, .norm_topk = true};
  expect_routing(route_rows(config, std::vector<double>(8, 0.0)), {0, 1, 2}, {1.0 / 3, 1.0 / 3, 1.0 / 3});
  EXPECT_EQ(to_vector(route_rows(config, std::vector<double>(8, 0.0)).weights)[0], static_cast<double>(1.0F / 3.0F));
  RouterConfig signs{.num_experts = 4, .top_k = 1, .score = ScoreFunction::topk_softmax};
  EXPECT_EQ(ids_of(route_rows(signs, {-0.0, 0.0, -1, -1})), (std::vector<int>{0}));
  EXPECT_EQ(ids_of(route_rows(signs, {-1, 0.0, -0.0, -1})), (std::vector<int>{1}));
  RouterConfig many{.num_experts = 100, .top_k = 40, .score = ScoreFunction::topk_softmax};  // the sorting path
  std::vector<double> signed_zeros(100);
  for (size_t i = 0; i < 100; i += 3) signed_zeros[i] = -0.0;
  std::vector<int> ids = ids_of(route_rows(many, signed_zeros));
  for (int i = 0; i < 40; ++i) EXPECT_EQ(ids[static_cast<size_t>(i)], i);
}

TEST_F(Router, LoadBalancingLossIsPerLayer) {
  RouterConfig config{.num_experts = 2, .top_k = 1};
  double l3 = std::log(3);
  EXPECT_NEAR(route_rows(config, {l3, 0, l3, 0}).losses.load_balancing, 1.5, 1e-6);
  EXPECT_NEAR(route_rows(config, {0, l3, 0, l3}).losses.load_balancing, 1.5, 1e-6);
  RouterConfig balanced{.num_experts = 4, .top_k = 2};
  std::vector<double> zeros(8, 0.0);
  EXPECT_NEAR(route_rows(balanced, zeros).losses.load_balancing, 1.0, 1e-6);
  balanced.aux_loss_times_k = true;
  EXPECT_NEAR(route_rows(balanced, zeros).losses.load_balancing, 2.0, 1e-6);
}

TEST_F(Router, SigmoidLossNormalisesScores) {
  // Scores 0.6 and 0.2 are three quarters and one quarter of their sum.
  RouterConfig config{.num_experts = 2, .top_k = 1, .score = ScoreFunction::sigmoid};
  EXPECT_NEAR(route_rows(config, {std::log(1.5), -std::log(4)}).losses.load_balancing, 1.5, 1e-6);
  EXPECT_EQ(route_rows(config, {-100, -100}).losses.load_balancing, 0);  // scores of 0 share nothing out
}

TEST_F(Router, ZLossIsTheMeanSquaredLogsumexp) {
  for (ScoreFunction score : {ScoreFunction::softmax, ScoreFunction::sigmoid, ScoreFunction::topk_softmax}) {
    RouterConfig config{.num_experts = 2, .top_k = 1, .score = score};
    double l2 = std::log(2);
    EXPECT_NEAR(route_rows(config, {0, 0}).losses.z, l2 * l2, 1e-6);
    EXPECT_NEAR(route_rows(config, {0, 0, 100, -inf}).losses.z, (l2 * l2 + 1e4) / 2, 1e-2);
  }
}

TEST_F(Router, NoTokensAreLegal) {
  for (ScoreFunction score : {ScoreFunction::softmax, ScoreFunction::sigmoid, ScoreFunction::topk_softmax}) {
    RouterConfig config{.num_experts = 4, .top_k = 2, .score = score, .aux_loss = 1, .z_loss = 1};
    Routed routed = run_route(*context_, config, make_tensor(DType::bf16, {0, 4}));
    EXPECT_EQ(routed.losses.load_balancing, 0);
    EXPECT_EQ(routed.losses.z, 0);
  }
}

}  // namespace
}  // namespace plait::test
