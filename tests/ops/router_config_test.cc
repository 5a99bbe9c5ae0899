#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "plait/router.h"

namespace plait {
namespace {

void expect_error(const RouterConfig& config, std::initializer_list<const char*> parts) {
  Status status = config.validate();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  for (const char* part : parts) EXPECT_NE(status.message().find(part), std::string::npos) << status.message() << "\nlacks " << part;
}

TEST(RouterConfig, NamesRoundTrip) {
  for (ScoreFunction score : {ScoreFunction::softmax, ScoreFunction::sigmoid, ScoreFunction::topk_softmax}) {
    EXPECT_EQ(parse_score_function(name(score)).take(), score);
  }
  Status status = parse_score_function("softmx").status();
  EXPECT_NE(status.message().find("'softmx'"), std::string::npos);
  EXPECT_NE(status.message().find("topk_softmax"), std::string::npos);
}

TEST(RouterConfig, AcceptsTheFieldsConventions) {
  EXPECT_TRUE((RouterConfig{.num_experts = 8, .top_k = 2, .norm_topk = true}).validate().ok());
  EXPECT_TRUE(
      (RouterConfig{
           .num_experts = 256, .top_k = 8, .score = ScoreFunction::sigmoid, .norm_topk = true, .scaling = 2.5F, .n_group = 8, .topk_group = 4})
          .validate()
          .ok());
  EXPECT_TRUE((RouterConfig{.num_experts = 1, .top_k = 1}).validate().ok());
  EXPECT_TRUE((RouterConfig{.num_experts = 600, .top_k = 600, .score = ScoreFunction::topk_softmax}).validate().ok());
}

TEST(RouterConfig, NamesBothNumbers) {
  expect_error({.num_experts = 4, .top_k = 5}, {"top_k = 5", "4"});
  expect_error({.num_experts = 4, .top_k = 0}, {"top_k = 0", "[1, 4]"});
  expect_error({.num_experts = 0, .top_k = 1}, {"num_experts = 0"});
  expect_error({.num_experts = 10, .top_k = 1, .n_group = 4, .topk_group = 1}, {"num_experts = 10", "n_group = 4"});
  expect_error({.num_experts = 8, .top_k = 1, .n_group = 4, .topk_group = 5}, {"topk_group = 5", "[1, 4]"});
  expect_error({.num_experts = 8, .top_k = 5, .n_group = 4, .topk_group = 2}, {"top_k = 5", "4 experts", "topk_group = 2"});
  expect_error({.num_experts = 8, .top_k = 1, .n_group = 0}, {"n_group = 0"});
  expect_error({.num_experts = int64_t{1} << 31, .top_k = 1}, {"num_experts = 2147483648", "int32"});
  expect_error({.num_experts = 8, .top_k = 1, .scaling = std::nanf("")}, {"scaling"});
  expect_error({.num_experts = 8, .top_k = 1, .aux_loss = -0.5F}, {"aux_loss = -0.5"});
  expect_error({.num_experts = 8, .top_k = 1, .z_loss = std::numeric_limits<float>::infinity()}, {"z_loss = inf"});
}

}  // namespace
}  // namespace plait
