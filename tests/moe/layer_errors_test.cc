// One rank fails, or ranks disagree: every rank returns an error that names the culprit, and none hangs.

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "each_dispatcher.h"
#include "support/layer_case.h"
#include "support/processes.h"

namespace plait::test {
namespace {

class LayerErrors : public EachDispatcher {};
INSTANTIATE_TEST_SUITE_P(Dispatchers, LayerErrors, each_dispatcher(), dispatcher_name);

/// All ranks fail with a message that has all the words.
void expect_error(const std::vector<Status>& statuses, const std::vector<std::string>& words, int culprit) {
  for (const Status& status : statuses) {
    EXPECT_FALSE(status.ok());
    for (const std::string& word : words) EXPECT_NE(status.message().find(word), std::string::npos) << word << " in: " << status.to_string();
    EXPECT_EQ(status.rank(), culprit) << status.to_string();
  }
}

/// Forward and backward on two ranks, each with inputs of its own. The bodies keep their errors to themselves, so that a rank learns of the
/// other's failure from the layer only.
std::vector<Status> run_two(const std::function<LayerInputs(int rank)>& inputs, const TokenSplit& split) {
  std::vector<Status> seen(2);
  const std::vector<Status> bodies = run_with_contexts(2, {.threads = 1, .kernel = {}}, [&](const Context& context, Group& group) {
    RankResult result;
    seen[static_cast<size_t>(group.rank())] = run_rank(context, group, inputs(group.rank()), split, result);
    return Status();
  });
  EXPECT_EQ(first_error(bodies), "");
  return seen;
}

LayerInputs router_case(int64_t tokens) {
  LayerConfig config = tested_config(DType::f32);
  config.router.num_experts = 4;
  config.router.top_k = 2;
  return make_inputs(config, {.tokens = tokens});
}

TEST_P(LayerErrors, NaNLogitsOnOneRankFailBoth) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int64_t columns : {19, 1}) {  // all of token 1's row, or one element
    const LayerInputs in = router_case(4);
    for (int64_t j = 0; j < columns; ++j) set(in.x, 3 * 19 + j, nan);
    expect_error(run_two([&](int) { return in; }, {2, 2}), {"token 1", "rank 1"}, 1);
  }
}

TEST_P(LayerErrors, InfiniteLogitsFailToo) {
  const LayerInputs in = router_case(3);
  set(in.x, 0, std::numeric_limits<double>::infinity());
  expect_error(run_two([&](int) { return in; }, {2, 1}), {"token 0", "rank 0"}, 0);
}

TEST_P(LayerErrors, IdsOutsideTheExperts) {
  for (int id : {-1, 4}) {
    LayerConfig config = tested_config(DType::f32);
    config.router.num_experts = 4;
    config.router.top_k = 2;
    const LayerInputs in = make_inputs(config, {.tokens = 6, .given_routing = true});
    set(in.ids, 9, id);  // token 4, slot 1: rank 1's token 1
    expect_error(run_two([&](int) { return in; }, {3, 3}), {"token 1", "slot 1", std::to_string(id)}, 1);
  }
}

TEST_P(LayerErrors, ASentinelMustNotBeNegative) {
  LayerConfig config = tested_config(DType::f32);
  config.sentinel = true;
  const LayerInputs in = make_inputs(config, {.tokens = 4, .given_routing = true});
  set(in.ids, 0, -1);
  expect_error(run_two([&](int) { return in; }, {2, 2}), {"-1"}, 0);
}

struct Disagreement {
  std::string words;
  std::function<void(LayerConfig&)> change;
};

TEST_P(LayerErrors, RanksThatDisagreeAreToldTheFieldAndBothValues) {
  const std::vector<Disagreement> list = {
      {"hidden size", [](LayerConfig& c) { c.hidden = 20; }},
      {"intermediate size", [](LayerConfig& c) { c.intermediate = 5; }},
      {"element type", [](LayerConfig& c) { c.dtype = DType::bf16; }},
      {"dispatcher", [](LayerConfig& c) { c.dispatcher = c.dispatcher == Dispatcher::eager ? Dispatcher::alltoall : Dispatcher::eager; }},
      {"experts per token", [](LayerConfig& c) { c.router.top_k = 2; }},
      {"number of experts", [](LayerConfig& c) { c.router.num_experts = 16; }},
      {"recompute", [](LayerConfig& c) { c.recompute = true; }},
      {"shared expert", [](LayerConfig& c) { c.shared_intermediate = 7; }},
      {"relu2", [](LayerConfig& c) { c.activation.kind = ActivationKind::relu2; }},
      {"expert bias", [](LayerConfig& c) { c.expert_bias = true; }},
  };
  for (const Disagreement& d : list) {
    LayerConfig odd = tested_config(DType::f32);
    d.change(odd);
    const LayerInputs usual = make_inputs(tested_config(DType::f32), {.tokens = 6}), other = make_inputs(odd, {.tokens = 6});
    expect_error(run_two([&](int rank) { return rank == 1 ? other : usual; }, {3, 3}), {d.words, "rank 1", "rank 0"}, 1);
  }
}

TEST_P(LayerErrors, ABadArgumentOnOneRankReachesTheOther) {
  const LayerInputs good = make_inputs(tested_config(DType::f32), {.tokens = 6});
  LayerInputs bad = good;
  bad.down = random_tensor(DType::f32, {8, 13, 18}, 3);
  expect_error(run_two([&](int rank) { return rank == 0 ? bad : good; }, {3, 3}), {"down weight", "(4, 13, 18)", "(4, 13, 19)"}, 0);
}

/// `body(context, group, states)` after two forward calls with different routing.
std::vector<Status> after_two_forwards(Engine engine,
                                       const std::function<Status(const Context&, Group&, const LayerInputs&, std::vector<LayerState>&)>& body) {
  const LayerInputs a = make_inputs(tested_config(DType::f32), {.tokens = 8, .seed = 1, .given_routing = true});
  LayerInputs b = a;
  b.ids = integer_tensor(DType::i32, {8, 3}, 99, 0, 7);
  return run_engine(engine, 2, {.timeout_s = 20}, [&](Group& group) -> Status {
    PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, Context::create({.threads = 1, .kernel = {}}));
    std::vector<LayerState> states;
    for (const LayerInputs* in : {&a, static_cast<const LayerInputs*>(&b)}) {
      const RankResult r = make_rank_result(*in, {4, 4}, group.rank());
      PLAIT_ASSIGN_OR_RETURN(LayerState state, layer_forward(*context, group, in->config, rank_weights(*in, group.rank(), 2),
                                                             rank_rows(in->x, {4, 4}, group.rank()), r.y, rank_routing(*in, {4, 4}, group.rank())));
      states.push_back(std::move(state));
    }
    return body(*context, group, a, states);
  });
}

Status backward_of(const Context& context, Group& group, const LayerInputs& in, const LayerState& state) {
  const RankResult r = make_rank_result(in, {4, 4}, group.rank());
  return layer_backward(context, group, in.config, rank_weights(in, group.rank(), 2), rank_rows(in.x, {4, 4}, group.rank()), state,
                        rank_rows(in.dy, {4, 4}, group.rank()), r.dx, gradients_of(r), r.dweights);
}

TEST_P(LayerErrors, BackwardsOfDifferentCallsDoNotMix) {
  const std::vector<Status> statuses =
      after_two_forwards(Engine::threads, [](const Context& context, Group& group, const LayerInputs& in, std::vector<LayerState>& states) {
        return backward_of(context, group, in, states[static_cast<size_t>(group.rank())]);
      });
  for (const Status& status : statuses) {
    EXPECT_FALSE(status.ok());
    // auto may have chosen another dispatcher for the second call: then that is named first.
    const char* word = GetParam() == Dispatcher::automatic ? "rank 1" : "which expects";
    EXPECT_NE(status.message().find(word), std::string::npos) << status.to_string();
  }
}

TEST_P(LayerErrors, ForwardAgainstBackward) {
  const std::vector<Status> statuses = after_two_forwards(Engine::threads, [](const Context& context, Group& group, const LayerInputs& in,
                                                                              std::vector<LayerState>& states) {
    if (group.rank() == 0) return backward_of(context, group, in, states[0]);
    const RankResult r = make_rank_result(in, {4, 4}, 1);
    return layer_forward(context, group, in.config, rank_weights(in, 1, 2), rank_rows(in.x, {4, 4}, 1), r.y, rank_routing(in, {4, 4}, 1)).status();
  });
  for (const Status& status : statuses) {
    EXPECT_FALSE(status.ok());
    for (const char* word : {"operation", "moe_forward", "moe_backward"})
      EXPECT_NE(status.message().find(word), std::string::npos) << status.to_string();
  }
}

TEST_P(LayerErrors, ARankThatDoesNotJoinTheBackwardIsNamed) {
  for (Engine engine : {Engine::threads, Engine::shm}) {
    const std::vector<Status> statuses =
        after_two_forwards(engine, [](const Context& context, Group& group, const LayerInputs& in, std::vector<LayerState>& states) {
          return group.rank() == 1 ? Status() : backward_of(context, group, in, states[0]);
        });
    EXPECT_FALSE(statuses[0].ok());
    EXPECT_EQ(statuses[0].rank(), 1) << statuses[0].to_string();
    EXPECT_TRUE(statuses[1].ok());
  }
}

TEST_P(LayerErrors, AStateOfAnotherCallIsRefused) {
  const LayerInputs in = make_inputs(tested_config(DType::f32), {.tokens = 6});
  const std::vector<Status> statuses = run_with_contexts(1, {.threads = 1, .kernel = {}}, [&](const Context& context, Group& group) -> Status {
    const RankResult r = make_rank_result(in, {6}, 0);
    const LayerWeights w = rank_weights(in, 0, 1);
    LayerConfig config = in.config;
    config.recompute = true;
    PLAIT_ASSIGN_OR_RETURN(const LayerState state, layer_forward(context, group, config, w, in.x, r.y));
    return layer_backward(context, group, in.config, w, in.x, state, in.dy, r.dx, gradients_of(r));
  });
  EXPECT_EQ(statuses[0].code(), StatusCode::invalid_argument);
  EXPECT_NE(statuses[0].message().find("recompute"), std::string::npos) << statuses[0].to_string();
}

}  // namespace
}  // namespace plait::test
