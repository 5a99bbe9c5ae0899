// The layer against the plain implementation of docs/numerics.md: equal bits, whatever the ranks, threads, tier and dispatcher.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/layer_case.h"
#include "support/layer_oracle_exact.h"

namespace plait::test {
namespace {

struct Variant {
  std::string name;
  DType dtype = DType::f32;
  LayerConfig config;
  InputOptions inputs;
  RankRunOptions run;
};

Variant variant(std::string name, DType dtype, uint64_t seed) {
  Variant v{std::move(name), dtype, small_config(dtype), {}, {}};
  v.inputs.tokens = 23;
  v.inputs.seed = seed;
  return v;
}

/// One of each convention, over the three types.
std::vector<Variant> variants() {
  std::vector<Variant> list;
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const std::string type(plait::name(dtype));
    Variant v = variant("plain_" + type, dtype, 1);
    list.push_back(v);

    v = variant("sigmoid_groups_" + type, dtype, 2);
    v.config.router.score = ScoreFunction::sigmoid;
    v.config.router.n_group = 4;
    v.config.router.topk_group = 2;
    v.config.router.scaling = 2.5F;
    v.config.shared_intermediate = 11;
    v.config.router_f32 = true;
    v.inputs.choice_bias = true;
    list.push_back(v);

    v = variant("clamped_bias_" + type, dtype, 3);
    v.config.router.score = ScoreFunction::topk_softmax;
    v.config.activation.kind = ActivationKind::swiglu_clamped;
    v.config.activation.interleaved = true;
    v.config.activation.limit = 0.75F;
    v.config.expert_bias = true;
    v.inputs.router_bias = true;
    list.push_back(v);

    v = variant("gated_shared_losses_" + type, dtype, 4);
    v.config.shared_intermediate = 70;
    v.config.shared_gate = true;
    v.config.router.aux_loss = 0.01F;
    v.config.router.z_loss = 0.001F;
    v.run.loss_scale = 0.5F;
    list.push_back(v);

    v = variant("geglu_" + type, dtype, 5);
    v.config.activation.kind = ActivationKind::geglu_tanh;
    v.config.expert_bias = true;
    v.run.gradient_type = dtype;
    list.push_back(v);

    v = variant("relu2_accumulate_" + type, dtype, 6);
    v.config.activation.kind = ActivationKind::relu2;
    v.config.expert_bias = true;
    v.run.accumulate = true;
    v.run.initial_gradient = 3;
    list.push_back(v);

    v = variant("given_duplicates_" + type, dtype, 7);
    v.config.router.top_k = 5;
    v.config.activation.interleaved = true;
    v.inputs.given_routing = true;
    list.push_back(v);

    v = variant("large_rows_" + type, dtype, 8);
    v.config.hidden = 131;
    v.config.intermediate = 67;
    v.config.expert_bias = true;
    v.config.shared_intermediate = 5;
    list.push_back(v);
  }
  return list;
}

class ExactLayer : public testing::TestWithParam<Variant> {
 protected:
  LayerInputs inputs() const { return make_inputs(GetParam().config, GetParam().inputs); }

  void expect_exact(const LayerInputs& in, const TokenSplit& split) const { expect_equal(in, split, {}, exact_layer(in, split, GetParam().run)); }

  void expect_equal(const LayerInputs& in, const TokenSplit& split, const std::string& kernel, const std::vector<RankResult>& expected,
                    int threads = 1) const {
    const Result<std::vector<RankResult>> got = run_layer(in, split, {.threads = threads, .kernel = kernel}, GetParam().run);
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    for (size_t rank = 0; rank < split.size(); ++rank) EXPECT_EQ(difference(got.value()[rank], expected[rank]), "") << "rank " << rank;
  }
};

TEST_P(ExactLayer, OneRank) { expect_exact(inputs(), {23}); }
TEST_P(ExactLayer, TwoRanks) { expect_exact(inputs(), {14, 9}); }
TEST_P(ExactLayer, FourRanksOneEmpty) { expect_exact(inputs(), {5, 0, 17, 1}); }
TEST_P(ExactLayer, EightRanksOneExpertEach) { expect_exact(inputs(), {3, 3, 3, 3, 3, 3, 3, 2}); }

TEST_P(ExactLayer, EagerAndRecompute) {
  LayerInputs in = inputs();
  in.config.dispatcher = Dispatcher::eager;
  in.config.recompute = true;
  expect_exact(in, {14, 9});
  in.config.dispatcher = Dispatcher::alltoall;
  expect_exact(in, {23});
  expect_exact(in, {14, 0, 9, 0});
}

TEST_P(ExactLayer, EveryTierAndThreadCount) {
  const LayerInputs in = inputs();
  const std::vector<RankResult> expected = exact_layer(in, {14, 9}, GetParam().run);
  for (const TierState& tier : tier_states()) {
    if (!tier.usable) continue;
    SCOPED_TRACE(name(tier.tier));
    expect_equal(in, {14, 9}, std::string(name(tier.tier)), expected, 2);
  }
  expect_equal(in, {14, 9}, {}, expected, 5);
}

INSTANTIATE_TEST_SUITE_P(Variants, ExactLayer, testing::ValuesIn(variants()), [](const auto& param_info) { return param_info.param.name; });

/// Sizes of ranks that do not divide 8.
TEST(ExactLayerRanks, ThreeAndSeven) {
  for (int ranks : {3, 7}) {
    LayerConfig config = small_config(DType::bf16);
    config.router.num_experts = 2 * ranks;
    const LayerInputs in = make_inputs(config, {.tokens = 29, .seed = 11});
    TokenSplit split(static_cast<size_t>(ranks), 4);
    split[1] = 29 - 4 * (ranks - 1);
    const std::vector<RankResult> expected = exact_layer(in, split);
    const Result<std::vector<RankResult>> got = run_layer(in, split);
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    for (size_t rank = 0; rank < split.size(); ++rank) EXPECT_EQ(difference(got.value()[rank], expected[rank]), "") << "rank " << rank;
  }
}

}  // namespace
}  // namespace plait::test
