// What a settings file means, once it has no fault.
#include <gtest/gtest.h>

#include "config/case_builder.h"
#include "config/config_files.h"

namespace plait {
namespace {

class YamlValues : public test::ConfigFiles {};
using Names = std::vector<std::string>;

TEST_F(YamlValues, TheFormThatTrainingStacksUse) {
  Case c = loaded(
      "parallel:\n  expert_parallel_size: 16\n  ep_plan:\n    apply_modules:\n      - model.language_model.layers.{*}.mlp.experts\n"
      "    dispatcher: alltoall\n    use_npu_fused_ops: true\nmodel:\n  model_id: qwen3_5_moe\n  use_grouped_expert_matmul: true\n");
  EXPECT_EQ(c.ranks, 16);
  EXPECT_EQ(c.model, "qwen3_5_moe_397b");
  EXPECT_EQ(c.layer.hidden, 4096);
  EXPECT_EQ(c.dispatchers, std::vector{Dispatcher::alltoall});
  EXPECT_EQ(c.apply_modules, Names{"model.language_model.layers.{*}.mlp.experts"});
  EXPECT_TRUE(c.fused_ops);
  EXPECT_TRUE(ignored_.empty());
}

TEST_F(YamlValues, CaseOverridesTheStacksSections) {
  Case c = loaded(
      "parallel:\n  expert_parallel_size: 16\n  ep_plan:\n    dispatcher: alltoall\ncase:\n  model: tiny\n  ranks: 2\n  dispatcher: [eager]\nmodel:\n"
      "  model_id: mixtral\n");
  EXPECT_EQ(c.ranks, 2);
  EXPECT_EQ(c.dispatchers, std::vector{Dispatcher::eager});
  EXPECT_EQ(c.model, "tiny");
}

TEST_F(YamlValues, KeysApplyAfterTheModelWhateverTheirOrder) {
  Case c = loaded("case:\n  hidden: 100\n  scale: 1/2\n  shared-expert: 0\n  shared_gate: false\n  model: tiny\n");
  EXPECT_EQ(c.layer.hidden, 100);
  EXPECT_EQ(c.layer.intermediate, 16);
  EXPECT_EQ(c.layer.shared_intermediate, 0);
  EXPECT_EQ(c.scale, 0.5);
}

TEST_F(YamlValues, EveryKindOfValue) {
  Case c = loaded(
      "case:\n  hidden: 24\n  intermediate: 16\n  experts: 6\n  topk: 2\n  ranks: 3\n  tokens: 0\n  dtype: f16\n  engine: threads\n  threads: auto\n"
      "  chunks: auto\n  skew: 1.5\n  seed: 18446744073709551615\n  backward: no\n  dispatcher: eager, alltoall\n  score: sigmoid\n  scaling: 2.5\n"
      "  aux_loss: 0.001\n  router_dtype: float32\n");
  EXPECT_EQ(c.layer.dtype, DType::f16);
  EXPECT_EQ(c.engine, Engine::threads);
  EXPECT_EQ(c.threads, 0);
  EXPECT_EQ(c.tokens, 0);
  EXPECT_EQ(c.skew, 1.5);
  EXPECT_EQ(c.seed, UINT64_MAX);
  EXPECT_FALSE(c.backward);
  EXPECT_EQ(c.dispatchers, (std::vector{Dispatcher::eager, Dispatcher::alltoall}));
  EXPECT_EQ(c.layer.router.score, ScoreFunction::sigmoid);
  EXPECT_TRUE(c.layer.router_f32);
}

TEST_F(YamlValues, OtherFrameworksSectionsAndKeysAreListed) {
  loaded("training:\n  lr: 1\nseed: 3\nparallel:\n  tensor_parallel_size: 2\nmodel:\n  model_id: some_model\n  dtype: bf16\ncase:\n  model: tiny\n");
  EXPECT_EQ(lines_of(ignored_.at(0)), Names{"x.yaml:1: training"});
  ASSERT_EQ(ignored_.size(), 5U);
  EXPECT_EQ(lines_of(ignored_[1]), Names{"x.yaml:3: seed"});
  EXPECT_EQ(lines_of(ignored_[2]), Names{"x.yaml:5: parallel.tensor_parallel_size"});
  EXPECT_EQ(lines_of(ignored_[3]), Names{"x.yaml:7: model.model_id (some_model has no preset)"});
  EXPECT_EQ(lines_of(ignored_[4]), Names{"x.yaml:8: model.dtype"});
}

TEST_F(YamlValues, InputIsLookedForBesideTheFile) {
  std::string text = write("words.txt", "some words");
  EXPECT_EQ(loaded("case:\n  model: tiny\n  input: words.txt\n").input, text);
  EXPECT_EQ(loaded("case:\n  model: tiny\n  input: " + text + "\n").input, text);
}

TEST_F(YamlValues, WithoutGroupedMatmulAlltoallRunsAsEager) {
  Case c = loaded("model:\n  use_grouped_expert_matmul: false\ncase:\n  model: tiny\n  dispatcher: alltoall\n");
  EXPECT_EQ(c.dispatchers, std::vector{Dispatcher::eager});
  c = loaded("model:\n  use_grouped_expert_matmul: false\ncase:\n  model: tiny\n");
  EXPECT_EQ(c.dispatchers, std::vector{Dispatcher::eager});
}

TEST_F(YamlValues, OptionsOverrideTheFile) {
  CaseBuilder builder;
  builder.add_file(write("x.yaml", "case:\n  model: tiny\n  scale: 1/2\n  hidden: 100\n  tokens: 7\n"));
  builder.add_option("tokens", "9");
  Result<Case> c = builder.build();
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->tokens, 9);
  EXPECT_EQ(c->layer.hidden, 100);
  EXPECT_EQ(c->layer.intermediate, 16);
}

TEST_F(YamlValues, AnotherScaleKeepsTheFilesOwnSizes) {
  CaseBuilder builder;
  builder.add_file(write("x.yaml", "case:\n  model: tiny\n  hidden: 100\n"));
  builder.add_option("scale", "1/4");
  Result<Case> c = builder.build();
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->layer.hidden, 100);
  EXPECT_EQ(c->layer.intermediate, 8);
}

TEST_F(YamlValues, AnotherModelReplacesTheFilesSizes) {
  CaseBuilder builder;
  builder.add_file(write("x.yaml", "case:\n  model: tiny\n  hidden: 100\n  tokens: 7\n  dtype: f32\n"));
  builder.add_option("model", "qwen3_30b_a3b");
  Result<Case> c = builder.build();
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->layer.hidden, 2048);
  EXPECT_EQ(c->tokens, 7);
  EXPECT_EQ(c->layer.dtype, DType::f32);
}

TEST_F(YamlValues, FaultsOfFileAndOptionsComeTogether) {
  CaseBuilder builder;
  builder.add_file(write("x.yaml", "case:\n  model: tiny\n  toknes: 7\n"));
  builder.add_option("ranks", "0");
  builder.add_fault("--foo is unknown");
  Result<Case> c = builder.build();
  ASSERT_FALSE(c.ok());
  EXPECT_EQ(lines_of(c.status().message()).size(), 3U);
}

}  // namespace
}  // namespace plait
