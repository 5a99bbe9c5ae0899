// What must not change a bit: where a token sits, who shares its rank, threads, chunks of K, engine; and that every row goes where it should.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/status_macros.h"
#include "plait/counters.h"
#include "support/layer_case.h"
#include "support/layer_oracle_exact.h"
#include "support/processes.h"

namespace plait::test {
namespace {

/// Expert e maps a token's code c to (e + 1) * c^2: a wrong row shows as another rank's, token's or expert's number.
TEST(LayerInvariance, EveryRowFindsItsExpertAndItsWayHome) {
  for (int ranks : {1, 2, 3, 4, 7}) {
    LayerConfig config = small_config(DType::f32);
    config.hidden = config.intermediate = 1;
    config.activation.kind = ActivationKind::relu2;
    config.router.num_experts = 3 * ranks;
    config.router.top_k = 2;
    const int64_t tokens = 40;
    LayerInputs in = make_inputs(config, {.tokens = tokens, .seed = 5, .given_routing = true});
    for (int64_t t = 0; t < tokens; ++t) {
      set(in.x, t, static_cast<double>(t + 1));
      set(in.dy, t, static_cast<double>(t % 5 + 1));
    }
    for (int64_t e = 0; e < 3 * ranks; ++e) {
      set(in.gate_up, e, 1);
      set(in.down, e, static_cast<double>(e + 1));
    }
    for (int64_t i = 0; i < 2 * tokens; ++i) set(in.weights, i, i % 2 == 0 ? 1 : 100);
    TokenSplit split(static_cast<size_t>(ranks), tokens / ranks);
    split.back() += tokens % ranks;
    const RankResult got = joined(run_layer(in, split).take());
    for (int64_t t = 0; t < tokens; ++t) {
      const double code = static_cast<double>(t + 1), dy = static_cast<double>(t % 5 + 1);
      const double first = get(in.ids, 2 * t) + 1, second = get(in.ids, 2 * t + 1) + 1;
      EXPECT_EQ(get(got.y, t), (first + 100 * second) * code * code) << "token " << t << " of " << ranks << " ranks";
      EXPECT_EQ(get(got.dx, t), (first + 100 * second) * 2 * code * dy) << "token " << t << " of " << ranks << " ranks";
      EXPECT_EQ(get(got.dweights, 2 * t), first * code * code * dy) << "token " << t << " of " << ranks << " ranks";
      EXPECT_EQ(get(got.dweights, 2 * t + 1), second * code * code * dy) << "token " << t << " of " << ranks << " ranks";
    }
  }
}

/// Small whole numbers: every sum is exact, so that a result is right or wrong, never close.
TEST(LayerInvariance, WholeNumbersStayExact) {
  LayerConfig config = small_config(DType::f32);
  config.activation.kind = ActivationKind::relu2;
  config.expert_bias = true;
  const LayerInputs in = make_inputs(config, {.tokens = 14, .seed = 9, .given_routing = true, .integers = true});
  const RankResult got = joined(run_layer(in, {5, 2, 0, 7}).take());
  for (int64_t t = 0; t < 14; ++t) {
    for (int64_t i = 0; i < 19; ++i) {
      double y = 0;
      for (int64_t s = 3 * t; s < 3 * t + 3; ++s) {
        const auto e = static_cast<int64_t>(get(in.ids, s));
        double row = get(in.down_bias, e * 19 + i);
        for (int64_t j = 0; j < 13; ++j) {
          double h = get(in.gate_up_bias, e * 13 + j);
          for (int64_t c = 0; c < 19; ++c) h += get(in.x, t * 19 + c) * get(in.gate_up, (e * 19 + c) * 13 + j);
          row += (h > 0 ? h * h : 0) * get(in.down, (e * 13 + j) * 19 + i);
        }
        y += get(in.weights, s) * row;
      }
      EXPECT_EQ(get(got.y, t * 19 + i), y) << "token " << t << ", column " << i;
    }
  }
}

class LongRows : public testing::TestWithParam<DType> {};

TEST_P(LongRows, NeitherRanksNorThreadsNorNeighboursChangeABit) {
  LayerConfig config = small_config(GetParam());
  config.hidden = 1031;
  config.intermediate = 3;
  config.router.num_experts = 4;
  config.router.top_k = 2;
  const LayerInputs in = make_inputs(config, {.tokens = 64, .seed = 3, .given_routing = true});
  const RankResult expected = joined(run_layer(in, {64}).take());
  for (int threads : {1, 2, 5, 8}) {
    EXPECT_EQ(difference_across_splits(in, {{64}, {30, 34}, {10, 0, 53, 1}}, {.threads = threads, .kernel = {}}), "") << threads << " threads";
  }
  LayerInputs alone = in;  // a token by itself, at another place, on another rank
  for (int64_t t : {0, 17, 63}) {
    alone.x.view = in.x.view.slice(t, t + 1);
    alone.dy.view = in.dy.view.slice(t, t + 1);
    alone.ids.view = in.ids.view.slice(t, t + 1);
    alone.weights.view = in.weights.view.slice(t, t + 1);
    const RankResult one = joined(run_layer(alone, {0, 1}).take());
    EXPECT_BITS_EQ(one.y.view, expected.y.view.slice(t, t + 1));
    EXPECT_BITS_EQ(one.dx.view, expected.dx.view.slice(t, t + 1));
    EXPECT_BITS_EQ(one.dweights.view, expected.dweights.view.slice(t, t + 1));
  }
}
INSTANTIATE_TEST_SUITE_P(Types, LongRows, testing::Values(DType::f32, DType::bf16),
                         [](const auto& param_info) { return std::string(name(param_info.param)); });

/// One body for both engines: forward and backward in a loop, compared on the rank itself.
class OnEngine : public testing::TestWithParam<std::tuple<Engine, Dispatcher>> {};

TEST_P(OnEngine, SameBitsAsTheDefinition) {
  const auto [engine, dispatcher] = GetParam();
  LayerConfig config = small_config(DType::bf16);
  config.shared_intermediate = 6;
  config.dispatcher = dispatcher;
  for (int ranks : {2, 4}) {
    for (bool recompute : {false, true}) {
      config.recompute = recompute;
      const LayerInputs in = make_inputs(config, {.tokens = 31, .seed = 13});
      TokenSplit split(static_cast<size_t>(ranks), 3);
      split[1] = 31 - 3 * (ranks - 1);
      const std::vector<RankResult> expected = exact_layer(in, split);
      const std::vector<Status> statuses = run_engine(engine, ranks, {}, [&](Group& group) -> Status {
        PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, Context::create({.threads = 2, .kernel = {}}));
        for (int step = 0; step < 5; ++step) {
          RankResult result;
          PLAIT_RETURN_IF_ERROR(run_rank(*context, group, in, split, result));
          const std::string text = difference(result, expected[static_cast<size_t>(group.rank())]);
          if (!text.empty()) return Status::internal("step " + std::to_string(step) + ": " + text);
        }
        return {};
      });
      EXPECT_EQ(first_error(statuses), "") << ranks << " ranks";
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Engines, OnEngine,
                         testing::Combine(testing::Values(Engine::threads, Engine::shm),
                                          testing::ValuesIn(all_dispatchers().begin(), all_dispatchers().end())),
                         [](const auto& param_info) {
                           return std::string(name(std::get<0>(param_info.param))) + "_" + std::string(name(std::get<1>(param_info.param)));
                         });

/// Rows cross whether they are copied or read and written in place.
void expect_traffic(Dispatcher dispatcher, int64_t forward_bytes_beside_row, int64_t backward_bytes_beside_row) {
  SCOPED_TRACE(name(dispatcher));
  LayerConfig config = small_config(DType::f32);
  config.dispatcher = dispatcher;
  config.shared_intermediate = 4;
  const LayerInputs in = make_inputs(config, {.tokens = 20, .given_routing = true});
  const TokenSplit split = {12, 8};
  int64_t away[2] = {0, 0};  // entries of a rank whose expert lives on the other one
  for (int64_t i = 0; i < 60; ++i) {
    const int home = i < 36 ? 0 : 1;
    if (static_cast<int>(get(in.ids, i)) / 4 != home) ++away[home];
  }
  const std::vector<Status> statuses = run_with_contexts(2, {.threads = 1, .kernel = {}}, [&](const Context& context, Group& group) -> Status {
    RankResult result;
    PLAIT_RETURN_IF_ERROR(run_rank(context, group, in, split, result));
    const Recorder& recorder = context.recorder();
    const int64_t mine = away[group.rank()], theirs = away[1 - group.rank()];
    EXPECT_EQ(recorder.value(Counter::rows_sent), 2 * (mine + theirs));  // out and home, forward and backward
    EXPECT_EQ(recorder.value(Counter::rows_received), 2 * (mine + theirs));
    const int64_t row = 19 * 4;  // home, each row has 4 bytes of its weight's gradient beside it in backward
    EXPECT_EQ(recorder.value(Counter::bytes_sent),
              mine * (row + forward_bytes_beside_row) + theirs * row + mine * (row + backward_bytes_beside_row) + theirs * (row + 4));
    EXPECT_EQ(recorder.value(Counter::bytes_received),
              theirs * (2 * row + forward_bytes_beside_row + backward_bytes_beside_row) + mine * (2 * row + 4));
    for (int stage = 0; stage < static_cast<int>(Stage::other); ++stage) {
      const bool waits_only = stage == static_cast<int>(Stage::dispatch) || stage == static_cast<int>(Stage::backward_combine);
      if (dispatcher == Dispatcher::mc2 && waits_only) continue;  // nothing where all rows are there in time
      EXPECT_GT(recorder.stage_ns(static_cast<Stage>(stage)), 0) << name(static_cast<Stage>(stage));
    }
    return {};
  });
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(LayerInvariance, CountersAndZonesSayWhatMoved) {
  expect_traffic(Dispatcher::alltoall, 0, 4);  // the weight travels with dy
  expect_traffic(Dispatcher::mc2, 8, 0);       // the token's number and the weight are read once
}

}  // namespace
}  // namespace plait::test
