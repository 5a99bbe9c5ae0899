// States, regions and groups over several calls: any order of forward and backward, shapes that change, failures, new groups.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/arena.h"
#include "base/status_macros.h"
#include "each_dispatcher.h"
#include "support/layer_case.h"
#include "support/layer_oracle_exact.h"
#include "support/processes.h"

namespace plait::test {
namespace {

class LayerLives : public EachDispatcher {};
INSTANTIATE_TEST_SUITE_P(Dispatchers, LayerLives, each_dispatcher(), dispatcher_name);

/// A layer and batch, its forward state on one rank, and what must come out.
struct Life {
  const LayerInputs& in;
  TokenSplit split;
  RankResult result;
  LayerState state;

  Status forward(const Context& context, Group& group) {
    result = make_rank_result(in, split, group.rank());
    PLAIT_ASSIGN_OR_RETURN(state, layer_forward(context, group, in.config, rank_weights(in, group.rank(), group.size()),
                                                rank_rows(in.x, split, group.rank()), result.y, rank_routing(in, split, group.rank())));
    result.losses = state.losses;
    return {};
  }
  Status backward(const Context& context, Group& group) {
    return layer_backward(context, group, in.config, rank_weights(in, group.rank(), group.size()), rank_rows(in.x, split, group.rank()), state,
                          rank_rows(in.dy, split, group.rank()), result.dx, gradients_of(result), result.dweights);
  }
  std::string compare(const std::vector<RankResult>& expected, int rank) const { return difference(result, expected[static_cast<size_t>(rank)]); }
};

void expect_ok(const std::vector<Status>& statuses) {
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST_P(LayerLives, SeveralForwardsThenBackwardsInAnyOrder) {
  LayerConfig other = tested_config(DType::bf16);
  other.recompute = true;
  other.shared_intermediate = 5;
  const LayerInputs a = make_inputs(tested_config(DType::f32), {.tokens = 9, .seed = 1});
  const LayerInputs b = make_inputs(other, {.tokens = 15, .seed = 2});
  const TokenSplit split_a = {4, 5}, split_b = {15, 0}, split_c = {0, 9};
  const std::vector<RankResult> expected_a = exact_layer(a, split_a), expected_b = exact_layer(b, split_b), expected_c = exact_layer(a, split_c);
  expect_ok(run_with_contexts(2, {.threads = 2, .kernel = {}}, [&](const Context& context, Group& group) -> Status {
    Life first{a, split_a, {}, {}}, second{b, split_b, {}, {}}, third{a, split_c, {}, {}};
    PLAIT_RETURN_IF_ERROR(first.forward(context, group));
    PLAIT_RETURN_IF_ERROR(second.forward(context, group));
    PLAIT_RETURN_IF_ERROR(third.forward(context, group));
    PLAIT_RETURN_IF_ERROR(second.backward(context, group));
    PLAIT_RETURN_IF_ERROR(first.backward(context, group));
    PLAIT_RETURN_IF_ERROR(third.backward(context, group));
    EXPECT_EQ(first.compare(expected_a, group.rank()), "");
    EXPECT_EQ(second.compare(expected_b, group.rank()), "");
    EXPECT_EQ(third.compare(expected_c, group.rank()), "");
    PLAIT_RETURN_IF_ERROR(second.backward(context, group));  // the state is read only: once more, same bits
    EXPECT_EQ(second.compare(expected_b, group.rank()), "");
    return {};
  }));
}

TEST_P(LayerLives, ShapesChangeFromCallToCall) {
  std::vector<LayerInputs> inputs;
  std::vector<TokenSplit> splits = {{3, 5}, {0, 7}, {9, 1}, {200, 0}, {6, 6}, {2, 3}};
  LayerConfig config = tested_config(DType::f32);
  for (size_t i = 0; i < splits.size(); ++i) {
    if (i == 4) config.hidden = 40;
    if (i == 5) config.dtype = DType::bf16;
    inputs.push_back(make_inputs(config, {.tokens = splits[i][0] + splits[i][1], .seed = 40 + i}));
  }
  std::vector<std::vector<RankResult>> expected;
  for (size_t i = 0; i < splits.size(); ++i) expected.push_back(exact_layer(inputs[i], splits[i]));
  expect_ok(run_with_contexts(2, {.threads = 1, .kernel = {}}, [&](const Context& context, Group& group) -> Status {
    for (size_t i = 0; i < splits.size(); ++i) {
      Life life{inputs[i], splits[i], {}, {}};
      PLAIT_RETURN_IF_ERROR(life.forward(context, group));
      PLAIT_RETURN_IF_ERROR(life.backward(context, group));
      EXPECT_EQ(life.compare(expected[i], group.rank()), "") << "call " << i;
    }
    return {};
  }));
}

TEST_P(LayerLives, ForwardWithoutBackwardKeepsMemoryConstant) {
  LayerConfig config = tested_config(DType::bf16);
  config.hidden = 64;
  const LayerInputs in = make_inputs(config, {.tokens = 96});
  for (Engine engine : {Engine::threads, Engine::shm}) {
    const std::vector<Status> statuses = run_engine(engine, 2, {}, [&](Group& group) -> Status {
      PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, Context::create({.threads = 1, .kernel = {}}));
      const TokenSplit split = {40, 56};
      int64_t in_use = 0, peak = 0, window = 0;
      for (int step = 0; step < 500; ++step) {
        Life life{in, split, {}, {}};
        PLAIT_RETURN_IF_ERROR(life.forward(*context, group));
        if (step == 20) {
          in_use = context->arena().bytes_in_use();
          peak = context->arena().peak_bytes();
          window = group.peak_window_bytes();
        }
        if (step > 20 && context->arena().bytes_in_use() != in_use) return Status::internal("arena memory grew in step " + std::to_string(step));
      }
      if (context->arena().peak_bytes() != peak) return Status::internal("the arena's peak rose");
      if (group.peak_window_bytes() != window) return Status::internal("the window's peak rose");
      return {};
    });
    EXPECT_EQ(first_error(statuses), "") << name(engine);
  }
}

TEST_P(LayerLives, AFailureStopsAllAndANewGroupWorks) {
  LayerConfig config = tested_config(DType::f32);
  config.router.num_experts = 9;
  const TokenSplit split = {4, 4, 4};
  const LayerInputs good = make_inputs(config, {.tokens = 12, .given_routing = true});
  LayerInputs wrong = good;
  wrong.ids = make_tensor(DType::i32, {12, 3});
  for (int64_t i = 0; i < 36; ++i) set(wrong.ids, i, i == 20 ? 77 : get(good.ids, i));  // token 6: on rank 1
  const std::vector<RankResult> expected = exact_layer(good, split);
  for (Engine engine : {Engine::threads, Engine::shm}) {
    for (int round = 0; round < 3; ++round) {
      const std::vector<Status> statuses = run_engine(engine, 3, {}, [&](Group& group) -> Status {
        PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, Context::create({.threads = 1, .kernel = {}}));
        RankResult result;
        PLAIT_RETURN_IF_ERROR(run_rank(*context, group, good, split, result));
        Life life{good, split, {}, {}};
        PLAIT_RETURN_IF_ERROR(life.forward(*context, group));
        return run_rank(*context, group, wrong, split, result);
      });
      for (const Status& status : statuses) {
        EXPECT_FALSE(status.ok());
        EXPECT_NE(status.message().find("77"), std::string::npos) << name(engine) << ": " << status.to_string();
        EXPECT_EQ(status.rank(), 1);
      }
      const std::vector<Status> again = run_engine(engine, 3, {}, [&](Group& group) -> Status {
        PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, Context::create({.threads = 1, .kernel = {}}));
        RankResult result;
        PLAIT_RETURN_IF_ERROR(run_rank(*context, group, good, split, result));
        const std::string text = difference(result, expected[static_cast<size_t>(group.rank())]);
        return text.empty() ? Status() : Status::internal(text);
      });
      EXPECT_EQ(first_error(again), "") << name(engine);
    }
  }
}

}  // namespace
}  // namespace plait::test
