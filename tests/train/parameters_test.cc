#include "train/parameters.h"

#include <gtest/gtest.h>

#include "support/test_tensors.h"
#include "train_support.h"

namespace plait::train {
namespace {

LayerConfig full_config() {
  LayerConfig config = test::train_options(DType::bf16, 1).layer;
  config.router.score = ScoreFunction::topk_softmax;
  config.expert_bias = true;
  return config;
}

TEST(LayerParameters, HasEveryOptionalPart) {
  auto context = test::make_context();
  auto layer = LayerParameters::create(*context, full_config(), 1, 4, 3);
  ASSERT_TRUE(layer.ok());
  LayerWeights w = layer->weights();
  EXPECT_EQ(describe(w.router).substr(0, 12), "bf16 (8, 32)");
  EXPECT_EQ(w.gate_up.shape[0], 2);
  EXPECT_EQ(w.gate_up.shape[1], 32);
  EXPECT_EQ(w.gate_up.shape[2], 48);
  EXPECT_EQ(w.down.shape[1], 24);
  EXPECT_TRUE(w.router_bias.defined() && w.gate_up_bias.defined() && w.down_bias.defined());
  EXPECT_TRUE(w.shared_gate_up.defined() && w.shared_down.defined() && w.shared_gate.defined());
  EXPECT_FALSE(w.choice_bias.defined());
  EXPECT_EQ(w.router_bias.dtype, DType::f32);
  LayerGradients g = layer->gradients(true);
  EXPECT_TRUE(g.accumulate);
  for (const TensorView& gradient :
       {g.router, g.router_bias, g.gate_up, g.gate_up_bias, g.down, g.down_bias, g.shared_gate_up, g.shared_down, g.shared_gate}) {
    ASSERT_TRUE(gradient.defined());
    EXPECT_EQ(gradient.dtype, DType::f32);
    for (double v : test::to_vector(gradient)) EXPECT_EQ(v, 0);
  }
}

TEST(LayerParameters, LeavesOutWhatTheConfigurationLacks) {
  LayerConfig config = full_config();
  config.router.score = ScoreFunction::sigmoid;
  config.expert_bias = false;
  config.shared_gate = false;
  config.activation.kind = ActivationKind::relu2;
  auto context = test::make_context();
  auto layer = LayerParameters::create(*context, config, 0, 1, 3);
  ASSERT_TRUE(layer.ok());
  LayerWeights w = layer->weights();
  EXPECT_TRUE(w.choice_bias.defined());
  EXPECT_FALSE(layer->set().gradient(Stream::choice_bias).defined());
  EXPECT_FALSE(w.router_bias.defined() || w.gate_up_bias.defined() || w.down_bias.defined() || w.shared_gate.defined());
  EXPECT_EQ(w.gate_up.shape[2], 24);
  config.shared_intermediate = 0;
  auto plain = LayerParameters::create(*context, config, 0, 1, 3);
  ASSERT_TRUE(plain.ok());
  EXPECT_FALSE(plain->weights().shared_down.defined());
}

TEST(LayerParameters, ExpertIsTheSameOnAnyNumberOfRanks) {
  auto context = test::make_context();
  auto whole = LayerParameters::create(*context, full_config(), 0, 1, 3);
  ASSERT_TRUE(whole.ok());
  for (int ranks : {2, 4, 8}) {
    for (int rank = 0; rank < ranks; ++rank) {
      auto part = LayerParameters::create(*context, full_config(), rank, ranks, 3);
      ASSERT_TRUE(part.ok());
      int64_t e = 8 / ranks;
      EXPECT_BITS_EQ(part->weights().gate_up, whole->weights().gate_up.slice(rank * e, (rank + 1) * e));
      EXPECT_BITS_EQ(part->weights().down_bias, whole->weights().down_bias.slice(rank * e, (rank + 1) * e));
      EXPECT_BITS_EQ(part->weights().router, whole->weights().router);
    }
  }
}

TEST(ParameterSet, ReplicatedGradientsLieInOnePiece) {
  auto context = test::make_context();
  std::vector<ParameterSpec> specs = layer_parameter_specs(full_config(), 0, 2);
  specs.push_back(embedding_spec(full_config()));
  auto set = ParameterSet::create(*context, specs, 1);
  ASSERT_TRUE(set.ok());
  int64_t num_replicated = 0;
  for (const Parameter& item : set->items()) {
    if (item.spec.sharded || !item.spec.trained) continue;
    EXPECT_EQ(item.gradient.as<float>(), set->replicated_gradients().data() + num_replicated);
    num_replicated += item.gradient.num_elements();
  }
  EXPECT_EQ(static_cast<int64_t>(set->replicated_gradients().size()), num_replicated);
  test::set(set->gradient(Stream::embedding), 5, 1.0);
  test::set(set->gradient(Stream::down), 5, 1.0);
  set->zero_gradients();
  EXPECT_EQ(test::get(set->gradient(Stream::embedding), 5), 0);
  EXPECT_EQ(test::get(set->gradient(Stream::down), 5), 0);
}

}  // namespace
}  // namespace plait::train
