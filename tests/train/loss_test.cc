#include "train/loss.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/test_tensors.h"
#include "train_support.h"

namespace plait::train {
namespace {

TEST(CrossEntropy, EqualsFloat64) {
  auto context = test::make_context(2);
  constexpr int64_t tokens = 9, vocabulary = 256;
  Tensor logits = test::random_tensor(DType::f32, {tokens, vocabulary}, 4, -8, 8), dlogits = test::make_tensor(DType::f32, {tokens, vocabulary});
  std::vector<uint8_t> targets;
  for (int64_t t = 0; t < tokens; ++t) targets.push_back(static_cast<uint8_t>(t * 31));
  std::vector<float> losses(tokens);
  cross_entropy(*context, logits, targets, losses, dlogits);
  for (int64_t t = 0; t < tokens; ++t) {
    double sum = 0;
    for (int64_t v = 0; v < vocabulary; ++v) sum += std::exp(test::get(logits, t * vocabulary + v));
    auto target = static_cast<int64_t>(targets[static_cast<size_t>(t)]);
    EXPECT_NEAR(losses[static_cast<size_t>(t)], std::log(sum) - test::get(logits, t * vocabulary + target), 1e-5);
    for (int64_t v = 0; v < vocabulary; ++v) {
      double p = std::exp(test::get(logits, t * vocabulary + v)) / sum - (v == target ? 1 : 0);
      EXPECT_NEAR(test::get(dlogits, t * vocabulary + v), p, 1e-6);
    }
  }
}

TEST(CrossEntropy, LargeLogitsStayFinite) {
  auto context = test::make_context();
  Tensor logits = test::tensor_of(DType::f32, {1, 3}, {5000, 0, -5000}), dlogits = test::make_tensor(DType::bf16, {1, 3});
  std::vector<float> losses(1);
  std::vector<uint8_t> targets{1};
  cross_entropy(*context, logits, targets, losses, dlogits);
  EXPECT_EQ(losses[0], 5000);
  EXPECT_EQ(test::to_vector(dlogits), (std::vector<double>{1, -1, 0}));
}

TEST(CrossEntropy, NoTokens) {
  auto context = test::make_context();
  Tensor logits = test::make_tensor(DType::f32, {0, 256}), dlogits = test::make_tensor(DType::f32, {0, 256});
  cross_entropy(*context, logits, {}, {}, dlogits);
}

}  // namespace
}  // namespace plait::train
