#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "support/layer_case.h"

namespace plait::test {
namespace {

TEST(Dispatcher, NamesReadBack) {
  EXPECT_EQ(all_dispatchers().size(), 5U);
  for (Dispatcher dispatcher : all_dispatchers()) {
    const Result<Dispatcher> parsed = parse_dispatcher(name(dispatcher));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(parsed.value(), dispatcher);
  }
}

TEST(Dispatcher, AnUnknownNameListsTheKnown) {
  const Status status = parse_dispatcher("alltoal").status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  for (const char* word : {"'alltoal'", "eager", "alltoall", "mc2", "auto"})
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
}

TEST(LayerConfig, ASmallOneIsValid) { EXPECT_TRUE(small_config(DType::bf16).validate(4).ok()); }

TEST(LayerConfig, EveryFaultIsNamed) {
  LayerConfig config = small_config(DType::i32);
  config.hidden = 0;
  config.intermediate = -2;
  config.shared_intermediate = -1;
  config.shared_gate = true;
  config.router.num_experts = 6;
  config.router.top_k = 9;
  const Status status = config.validate(4);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  for (const char* word : {"hidden size is 0", "intermediate size is -2", "i32", "is -1", "gate", "9", "6 experts", "4 ranks"}) {
    EXPECT_NE(status.message().find(word), std::string::npos) << word << " in: " << status.message();
  }
}

TEST(LayerConfig, ClampedActivationNeedsALimit) {
  LayerConfig config = small_config(DType::f32);
  config.activation.kind = ActivationKind::swiglu_clamped;
  config.activation.limit = 0;
  EXPECT_FALSE(config.validate(1).ok());
}

/// The message of a forward call on one rank whose inputs are altered.
template <typename Change>
std::string forward_error(Change change) {
  LayerInputs in = make_inputs(small_config(DType::f32), {.tokens = 4});
  RankResult result = make_rank_result(in, {4}, 0);
  LayerWeights weights = rank_weights(in, 0, 1);
  GivenRouting given;
  change(in, weights, result.y.view, given);
  const std::vector<Status> statuses = run_with_contexts(1, {.threads = 1, .kernel = {}}, [&](const Context& context, Group& group) {
    return layer_forward(context, group, in.config, weights, in.x, result.y, given).status();
  });
  return statuses[0].message();
}

TEST(LayerArguments, MessagesNameTheTensorItsShapeAndTheRule) {
  const Tensor other = make_tensor(DType::f32, {4, 20}), ids = make_tensor(DType::i32, {4, 2});
  auto expect = [](const std::string& message, const std::vector<std::string>& words) {
    for (const std::string& word : words) EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
  };
  expect(forward_error([&](LayerInputs& in, auto&, auto&, auto&) { in.x = other; }), {"x is", "(4, 20)", "(4, 19)"});
  expect(forward_error([&](auto&, auto&, TensorView& y, auto&) { y = y.slice(0, 3); }), {"y is", "(3, 19)", "(4, 19)"});
  expect(forward_error([&](auto&, auto&, TensorView& y, auto&) { y.strides[0] = 0; }), {"y", "strides"});
  expect(forward_error([&](auto&, LayerWeights& w, auto&, auto&) { w.router = {}; }), {"router weight is undefined", "(8, 19)"});
  expect(forward_error([&](auto&, LayerWeights& w, auto&, auto&) { w.gate_up = w.down; }), {"gate_up weight", "(8, 13, 19)", "(8, 19, 26)"});
  expect(forward_error([&](auto&, LayerWeights& w, auto&, auto&) { w.down_bias = w.router; }), {"down bias", "expert_bias"});
  expect(forward_error([&](auto&, LayerWeights& w, auto&, auto&) { w.shared_down = w.router; }), {"shared down weight", "shared_intermediate"});
  expect(forward_error([&](auto&, auto&, auto&, GivenRouting& g) { g.ids = ids; }), {"given ids", "(4, 2)", "(4, 3)"});
  expect(forward_error([&](auto&, auto&, auto&, GivenRouting& g) { g.weights = other; }), {"given weights", "given ids"});
}

TEST(LayerArguments, GradientsMustFitTheirParameters) {
  const LayerInputs in = make_inputs(small_config(DType::bf16), {.tokens = 4});
  auto error = [&](const std::function<void(LayerGradients&)>& change) {
    const std::vector<Status> statuses = run_with_contexts(1, {.threads = 1, .kernel = {}}, [&](const Context& context, Group& group) -> Status {
      const RankResult r = make_rank_result(in, {4}, 0);
      LayerGradients gradients = gradients_of(r);
      change(gradients);
      const LayerWeights w = rank_weights(in, 0, 1);
      Result<LayerState> state = layer_forward(context, group, in.config, w, in.x, r.y);
      return state.ok() ? layer_backward(context, group, in.config, w, in.x, state.value(), in.dy, r.dx, gradients) : state.status();
    });
    return statuses[0].message();
  };
  const Tensor small = make_tensor(DType::f32, {8, 13, 18}), narrow = make_tensor(DType::bf16, {8, 13, 19}),
               half = make_tensor(DType::f16, {8, 13, 19});
  EXPECT_EQ(error([](LayerGradients&) {}), "");
  EXPECT_NE(error([&](LayerGradients& g) { g.down = small; }).find("gradient of the down weight"), std::string::npos);
  EXPECT_NE(error([&](LayerGradients& g) { g.down = half; }).find("must be bf16 or f32"), std::string::npos);
  EXPECT_NE(error([&](LayerGradients& g) {
              g.down = narrow;
              g.accumulate = true;
            }).find("must be f32, because it is added to"),
            std::string::npos);
  EXPECT_NE(error([&](LayerGradients& g) { g.down_bias = small; }).find("no such parameter"), std::string::npos);
}

}  // namespace
}  // namespace plait::test
