/// Seeded random shapes and conventions against the float64 oracle; threads, tiers and strides never change a bit.

#include <gtest/gtest.h>

#include <cmath>

#include "ops/router_support.h"

namespace plait::test {
namespace {

struct FuzzCase {
  RouterConfig config;
  Tensor logits, bias;
};

/// Every convention, sizes around vector lengths, group limits, ties (whole-number logits) in every fourth case.
FuzzCase make_case(uint64_t seed) {
  Random random(seed);
  FuzzCase c;
  int64_t group_size = 1 + random.below(seed % 7 == 0 ? 70 : 9);
  c.config.n_group = 1 + random.below(9);
  c.config.topk_group = 1 + random.below(c.config.n_group);
  c.config.num_experts = group_size * c.config.n_group;
  c.config.top_k = 1 + random.below(std::min<int64_t>(c.config.topk_group * group_size, seed % 5 == 0 ? 80 : 9));
  c.config.score = static_cast<ScoreFunction>(random.below(3));
  c.config.norm_topk = random.below(2) == 1;
  c.config.aux_loss_times_k = random.below(2) == 1;
  c.config.scaling = random.uniform(0.5F, 3);
  int64_t num_tokens = 1 + random.below(100);
  auto dtype = static_cast<DType>(random.below(3));
  c.logits = seed % 4 == 0 ? integer_tensor(dtype, {num_tokens, c.config.num_experts}, seed)
                           : random_tensor(dtype, {num_tokens, c.config.num_experts}, seed, -6, 6);
  if (random.below(2) == 1) c.bias = random_tensor(DType::f32, {c.config.num_experts}, seed + 1);
  return c;
}

/// What the choice compares, from the operator's own float32 scores.
std::vector<float> choice_values(const FuzzCase& c, const Routed& routed, int64_t t) {
  std::vector<float> values;
  for (int64_t j = 0; j < c.config.num_experts; ++j) {
    const Tensor& source = c.config.score == ScoreFunction::topk_softmax ? c.logits : routed.scores;
    auto value = static_cast<float>(get(source, t * c.config.num_experts + j));
    values.push_back(c.bias.defined() ? value + static_cast<float>(get(c.bias, j)) : value);
  }
  return values;
}

TEST(RouterFuzz, EqualsTheOracle) {
  auto context = router_context(2);
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    FuzzCase c = make_case(seed);
    Routed routed = run_route(*context, c.config, c.logits, c.bias);
    std::vector<int> all_ids = ids_of(routed);
    auto num_experts = c.config.num_experts;
    auto k = static_cast<int64_t>(c.config.top_k);
    for (int64_t t = 0; t < c.logits.view.shape[0]; ++t) {
      std::vector<int> ids(all_ids.begin() + t * k, all_ids.begin() + (t + 1) * k);
      ASSERT_EQ(ids, oracle_choice(c.config, choice_values(c, routed, t))) << "token " << t;
      std::vector<double> row;
      for (int64_t j = 0; j < num_experts; ++j) row.push_back(get(c.logits, t * num_experts + j));
      OracleToken oracle = oracle_token(c.config, row, ids);
      for (int64_t j = 0; j < num_experts; ++j) {
        ASSERT_NEAR(get(routed.scores, t * num_experts + j), oracle.scores[static_cast<size_t>(j)],
                    2e-6 * oracle.scores[static_cast<size_t>(j)] + 1e-37);
      }
      for (int64_t s = 0; s < k; ++s) {
        ASSERT_NEAR(get(routed.weights, t * k + s), oracle.weights[static_cast<size_t>(s)], 4e-6 * oracle.weights[static_cast<size_t>(s)] + 1e-37);
      }
    }
    std::vector<double> no_gradient(static_cast<size_t>(c.logits.view.shape[0] * k));
    OracleTotal total = oracle_total(c.config, to_vector(c.logits), all_ids, no_gradient);
    EXPECT_NEAR(routed.losses.load_balancing, total.load_balancing, 1e-5 * total.load_balancing);
    EXPECT_NEAR(routed.losses.z, total.z, 1e-5 * (total.z + 1));
  }
}

Tensor gradient_of(const Context& context, const FuzzCase& c, const Routed& routed, const Tensor& dweights) {
  Tensor dlogits = make_tensor(c.logits.view.dtype, {c.logits.view.shape[0], c.config.num_experts});
  Status status = route_backward(context, c.config, c.logits, routed.scores, routed.ids, routed.weights, dweights, 1.5F, dlogits);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return dlogits;
}

void expect_same_bits(const FuzzCase& c, const Context& a, const Context& b) {
  Tensor dweights = random_tensor(DType::f32, {c.logits.view.shape[0], c.config.top_k}, 3);
  Routed first = run_route(a, c.config, c.logits, c.bias);
  Routed second = run_route(b, c.config, c.logits, c.bias);
  EXPECT_BITS_EQ(first.ids, second.ids);
  EXPECT_BITS_EQ(first.weights, second.weights);
  EXPECT_BITS_EQ(first.scores, second.scores);
  EXPECT_EQ(first.losses.load_balancing, second.losses.load_balancing);
  EXPECT_EQ(first.losses.z, second.losses.z);
  EXPECT_BITS_EQ(gradient_of(a, c, first, dweights), gradient_of(b, c, second, dweights));
}

FuzzCase large_case(uint64_t seed) {
  FuzzCase c = make_case(seed);
  c.logits = random_tensor(c.logits.view.dtype, {777, c.config.num_experts}, seed, -4, 4);
  c.config.aux_loss = 0.01F;
  c.config.z_loss = 0.001F;
  return c;
}

TEST(RouterFuzz, ThreadsDoNotChangeABit) {
  auto one = router_context(1);
  for (int threads : {2, 8}) {
    auto several = router_context(threads);
    for (uint64_t seed = 0; seed < 24; ++seed) {
      SCOPED_TRACE(seed);
      expect_same_bits(large_case(seed), *one, *several);
    }
  }
}

TEST(RouterFuzz, TiersDoNotChangeABit) {
  auto reference = router_context(1, "reference");
  for (const TierState& state : tier_states()) {
    if (!state.usable) continue;
    auto other = router_context(1, std::string(name(state.tier)));
    for (uint64_t seed = 100; seed < 124; ++seed) {
      SCOPED_TRACE(std::string(name(state.tier)) + " seed " + std::to_string(seed));
      expect_same_bits(large_case(seed), *reference, *other);
    }
  }
}

/// A token's results do not depend on the tokens beside it.
TEST(RouterFuzz, TokensAreIndependent) {
  auto context = router_context();
  FuzzCase c = make_case(11);
  c.logits = random_tensor(DType::bf16, {40, c.config.num_experts}, 5, -4, 4);
  Routed all = run_route(*context, c.config, c.logits, c.bias);
  for (int64_t t = 0; t < 40; ++t) {
    Routed alone = run_route(*context, c.config, Tensor{c.logits.buffer, c.logits.view.slice(t, t + 1)}, c.bias);
    EXPECT_BITS_EQ(alone.weights, all.weights.view.slice(t, t + 1));
    EXPECT_BITS_EQ(alone.ids, all.ids.view.slice(t, t + 1));
  }
}

/// The same numbers through a transposed or a spread-out layout.
Tensor relaid(const Tensor& dense, bool transposed) {
  const TensorView& v = dense.view;
  Tensor base = transposed ? make_tensor(v.dtype, {v.shape[1], v.shape[0]}) : make_tensor(v.dtype, {v.shape[0], v.shape[1], 3});
  TensorView view = transposed ? base.view.transposed(0, 1) : base.view;
  if (!transposed) view.num_dims = 2;
  for (int64_t i = 0; i < v.num_elements(); ++i) {
    if (v.dtype == DType::i32) {
      *reinterpret_cast<int32_t*>(view.at(i / v.shape[1], i % v.shape[1])) = static_cast<int32_t>(get(v, i));
    } else {
      set(view, i, get(v, i));
    }
  }
  return {base.buffer, view};
}

TEST(RouterFuzz, AnyStrides) {
  auto context = router_context();
  for (uint64_t seed = 30; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    FuzzCase c = make_case(seed);
    c.config.aux_loss = 0.1F;
    Tensor dweights = random_tensor(DType::f32, {c.logits.view.shape[0], c.config.top_k}, seed);
    Routed dense = run_route(*context, c.config, c.logits, c.bias);
    Tensor expected = gradient_of(*context, c, dense, dweights);
    for (bool transposed : {false, true}) {
      auto blank = [&](const Tensor& like) { return relaid(like, transposed); };
      Routed strided{.logits = relaid(c.logits, transposed),
                     .bias = c.bias,
                     .ids = blank(dense.ids),
                     .weights = blank(random_tensor(DType::f32, {c.logits.view.shape[0], c.config.top_k}, 1)),
                     .scores = blank(random_tensor(DType::f32, {c.logits.view.shape[0], c.config.num_experts}, 1)),
                     .losses = {}};
      ASSERT_TRUE(route(*context, c.config, strided.logits, c.bias, strided.ids, strided.weights, strided.scores).ok());
      auto same = [](const Tensor& a, const Tensor& b) { EXPECT_EQ(to_vector(a), to_vector(b)); };
      same(strided.ids, dense.ids);
      same(strided.weights, dense.weights);
      same(strided.scores, dense.scores);
      Tensor dlogits = blank(expected);
      for (int64_t i = 0; i < expected.view.num_elements(); ++i) set(dlogits, i, std::nan(""));
      ASSERT_TRUE(route_backward(*context, c.config, strided.logits, strided.scores, strided.ids, strided.weights, relaid(dweights, transposed), 1.5F,
                                 dlogits)
                      .ok());
      same(dlogits, expected);
    }
  }
}

}  // namespace
}  // namespace plait::test
