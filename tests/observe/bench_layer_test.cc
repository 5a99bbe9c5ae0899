#include "observe/bench_layer.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace plait {
namespace {

Case small_case() {
  Case c;
  c.tokens = 12;
  c.layer.hidden = 24;
  c.layer.intermediate = 10;
  c.layer.dtype = DType::bf16;
  c.layer.router.num_experts = 6;
  c.layer.router.top_k = 2;
  c.layer.shared_intermediate = 8;
  c.ranks = 3;  // counts for nothing here
  c.dispatchers = {Dispatcher::alltoall, Dispatcher::mc2};
  return c;
}

TEST(StageWork, CountsEveryOperandOnce) {
  const Case c = small_case();
  EXPECT_EQ(stage_work(c, 24, Stage::gate_up, Dispatcher::alltoall).flops, 2.0 * 24 * 24 * 20);
  EXPECT_EQ(stage_work(c, 24, Stage::gate_up, Dispatcher::alltoall).bytes, 2.0 * (24 * 24 + 6 * 24 * 20 + 24 * 20));
  EXPECT_EQ(stage_work(c, 24, Stage::weight_gradient, Dispatcher::alltoall).flops, 2.0 * 24 * 24 * 30);
  EXPECT_EQ(stage_work(c, 24, Stage::activation, Dispatcher::alltoall).flops, 0);
  EXPECT_EQ(stage_work(c, 24, Stage::activation, Dispatcher::alltoall).bytes, 2.0 * 24 * 30);
  Case forward = c;
  forward.backward = false;
  EXPECT_EQ(stage_work(c, 24, Stage::permute, Dispatcher::alltoall).bytes, 2 * stage_work(forward, 24, Stage::permute, Dispatcher::alltoall).bytes);
  EXPECT_EQ(stage_work(c, 24, Stage::permute, Dispatcher::mc2).bytes, 0) << "it copies no rows";
  EXPECT_EQ(stage_work(c, 24, Stage::shared_expert, Dispatcher::mc2).flops, 3 * stage_work(forward, 24, Stage::shared_expert, Dispatcher::mc2).flops);
  EXPECT_EQ(stage_work(c, 24, Stage::dispatch, Dispatcher::alltoall).bytes, 0);
}

TEST(BenchLayer, TimesTheStagesOfEachDispatcher) {
  auto context = Context::create({.threads = 2}).take();
  double done = 0;
  BenchLayerOptions options{
      .run_case = small_case(), .seconds = 0.01, .progress = [&](double share, std::string_view) { done = share; }, .interrupted = {}};
  const BenchLayerReport report = bench_layer(*context, options).take();
  EXPECT_EQ(done, 1);
  EXPECT_GT(report.probe.bf16_gflops, 0);
  EXPECT_EQ(report.run_case.ranks, 1);
  ASSERT_EQ(report.layers.size(), 2U);
  for (const LayerTiming& layer : report.layers) {
    EXPECT_GE(layer.rounds, 3);
    EXPECT_GT(layer.best_ms, 0);
    bool has_gradients = false;
    for (const StageTiming& t : layer.stages) {
      EXPECT_LE(t.best_ms, t.median_ms);
      has_gradients = has_gradients || (t.stage == Stage::weight_gradient && t.bound_ms > 0 && t.over_bound() > 0);
    }
    EXPECT_TRUE(has_gradients) << name(layer.dispatcher);
  }
  const nlohmann::ordered_json json = to_json(report);
  EXPECT_EQ(json["dispatchers"]["mc2"]["step_ms"]["n"], report.layers[1].rounds);
  const std::string table = format_table(report);
  EXPECT_NE(table.find("weight_gradient"), std::string::npos) << table;
  EXPECT_NE(table.find("mc2: step"), std::string::npos) << table;
}

TEST(BenchLayer, StopsWhenTheUserInterrupts) {
  auto context = Context::create({.threads = 1}).take();
  int asked = 0;
  BenchLayerOptions options{.run_case = small_case(), .seconds = 100, .progress = {}, .interrupted = [&] { return ++asked > 4; }};
  const BenchLayerReport report = bench_layer(*context, options).take();
  EXPECT_TRUE(report.interrupted);
  EXPECT_NE(format_table(report).find("Interrupted"), std::string::npos);
}

}  // namespace
}  // namespace plait
