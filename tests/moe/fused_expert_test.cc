#include "plait/fused_expert.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "support/processes.h"
#include "support/test_tensors.h"

namespace plait::test {
namespace {

constexpr int num_ranks = 2;
constexpr int64_t experts = 6, local = 3, hidden = 7, intermediate = 5, top_k = 2, tokens = 12;

/// Global tensors. `accumulators` hold what gradients are added to.
struct Inputs {
  explicit Inputs(DType type)
      : dtype(type),
        x(random_tensor(type, {num_ranks * tokens, hidden}, 1)),
        dy(random_tensor(type, {num_ranks * tokens, hidden}, 2)),
        gate_up(random_tensor(type, {experts, hidden, 2 * intermediate}, 3)),
        down(random_tensor(type, {experts, intermediate, hidden}, 4)),
        weights(random_tensor(DType::f32, {num_ranks * tokens, top_k}, 5, 0.1F, 1)),
        ids(make_tensor(DType::i32, {num_ranks * tokens, top_k})) {
    Random random(6);
    for (int64_t i = 0; i < ids.view.num_elements(); ++i) ids.as<int32_t>()[i] = static_cast<int32_t>(random.below(experts - 1));  // one is idle
  }
  DType dtype;
  Tensor x, dy, gate_up, down, weights, ids;
};

TensorView mine(const Tensor& global, int rank) {
  const int64_t rows = global.view.shape[0] / num_ranks;
  return global.view.slice(rank * rows, (rank + 1) * rows);
}
TensorView half(const TensorView& gate_up, int64_t which) {
  TensorView part = gate_up;
  part.data += which * intermediate * gate_up.strides[2] * size_of(gate_up.dtype);
  part.shape[2] = intermediate;
  return part;
}
Tensor dense(const TensorView& view) {
  Tensor copy = make_tensor(view.dtype, {view.shape[0], view.shape[1], view.shape[2]});
  for (int64_t i = 0; i < view.num_elements(); ++i) set(copy, i, get(view, i));
  return copy;
}
Tensor filled(std::initializer_list<int64_t> shape, double value) {
  Tensor t = make_tensor(DType::f32, shape);
  for (int64_t i = 0; i < t.view.num_elements(); ++i) set(t, i, value);
  return t;
}

struct Outcome {
  Tensor y, dx, dweights, gate_up, down;
};

LayerConfig layer_config(DType dtype) {
  LayerConfig config;
  config.hidden = hidden;
  config.intermediate = intermediate;
  config.dtype = dtype;
  config.router = {.num_experts = experts, .top_k = top_k};
  config.dispatcher = Dispatcher::alltoall;
  return config;
}

/// The layer with given routing, unfused.
Result<Outcome> layer(const Context& context, Group& group, const Inputs& in) {
  const int r = group.rank();
  LayerWeights weights;
  weights.gate_up = mine(in.gate_up, r);
  weights.down = mine(in.down, r);
  Outcome o{make_tensor(in.dtype, {tokens, hidden}), make_tensor(in.dtype, {tokens, hidden}), make_tensor(DType::f32, {tokens, top_k}),
            filled({local, hidden, 2 * intermediate}, -0.0), filled({local, intermediate, hidden}, 0.25)};
  const LayerConfig config = layer_config(in.dtype);
  PLAIT_ASSIGN_OR_RETURN(const LayerState state, layer_forward(context, group, config, weights, mine(in.x, r), o.y,
                                                               {.ids = mine(in.ids, r), .weights = mine(in.weights, r)}));
  LayerGradients to;
  to.gate_up = o.gate_up;
  to.down = o.down;
  PLAIT_RETURN_IF_ERROR(layer_backward(context, group, config, weights, mine(in.x, r), state, mine(in.dy, r), o.dx, to, o.dweights));
  return o;
}

enum class Given { halves, apart, all_experts };

/// The same by mc2_fused_expert, x as (3, 4, H) in the second form.
Result<Outcome> fused(const Context& context, Group& group, const Inputs& in, Given given) {
  const int r = group.rank();
  const bool all = given == Given::all_experts;
  const TensorView both = all ? in.gate_up.view : mine(in.gate_up, r);
  const Tensor gate = dense(half(both, 0)), up = dense(half(both, 1));
  FusedExpertWeights weights{.up = up, .gate = gate, .down = all ? in.down.view : mine(in.down, r)};
  if (given == Given::halves) {
    weights.gate = half(both, 0);
    weights.up = half(both, 1);
  }
  TensorView x = mine(in.x, r), dy = mine(in.dy, r), ids = mine(in.ids, r), entry_weights = mine(in.weights, r);
  if (given == Given::apart) {
    for (TensorView* view : {&x, &dy, &ids, &entry_weights}) *view = TensorView(view->data, view->dtype, {3, 4, view->shape[1]});
  }
  const FusedExpertOptions options{.num_experts = all ? experts : 0, .activation = {}};
  PLAIT_ASSIGN_OR_RETURN(const FusedExpertResult result, mc2_fused_expert(context, group, x, weights, ids, entry_weights, options));

  const int64_t n = all ? experts : local;
  const Tensor dgate_up = filled({n, hidden, 2 * intermediate}, -0.0), dgate = dense(half(dgate_up, 0)), dup = dense(half(dgate_up, 1));
  Outcome o{result.y, {}, make_tensor(DType::f32, {tokens, top_k}), dgate_up, filled({n, intermediate, hidden}, 0.25)};
  FusedExpertGradients to{.up = dup, .gate = dgate, .down = o.down, .expert_weights = o.dweights, .accumulate = true};
  if (given == Given::halves) {
    to.gate = half(dgate_up, 0);
    to.up = half(dgate_up, 1);
  }
  PLAIT_ASSIGN_OR_RETURN(o.dx, mc2_fused_expert_backward(context, group, x, weights, result.state, dy, to, options));
  for (int64_t i = 0; given != Given::halves && i < dgate.view.num_elements(); ++i) {
    set(half(dgate_up, 0), i, get(dgate, i));
    set(half(dgate_up, 1), i, get(dup, i));
  }
  if (given == Given::apart && (o.y.view.num_dims != 3 || o.dx.view.shape[1] != 4)) return Status::internal("not of x's shape");
  o.y.view = TensorView(o.y.view.data, in.dtype, {tokens, hidden});
  o.dx.view = TensorView(o.dx.view.data, in.dtype, {tokens, hidden});
  if (all) {
    o.gate_up.view = mine(o.gate_up, r);
    o.down.view = mine(o.down, r);
  }
  return o;
}

std::string run(const std::function<Status(const Context&, Group&)>& body) {
  return first_error(run_ranks(num_ranks, {}, [&](Group& group) -> Status {
    PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, Context::create({.threads = 2, .kernel = ""}));
    return body(*context, group);
  }));
}

class FusedExpert : public ::testing::TestWithParam<std::tuple<DType, Given>> {};

TEST_P(FusedExpert, GivesTheBitsOfTheLayer) {
  const Inputs in(std::get<0>(GetParam()));
  EXPECT_EQ(run([&](const Context& context, Group& group) -> Status {
              PLAIT_ASSIGN_OR_RETURN(const Outcome expected, layer(context, group, in));
              PLAIT_ASSIGN_OR_RETURN(const Outcome got, fused(context, group, in, std::get<1>(GetParam())));
              for (Tensor Outcome::*part : {&Outcome::y, &Outcome::dx, &Outcome::dweights, &Outcome::gate_up, &Outcome::down}) {
                const std::string difference = bit_difference(got.*part, expected.*part);
                if (!difference.empty()) return Status::internal(difference);
              }
              return {};
            }),
            "");
}
INSTANTIATE_TEST_SUITE_P(Forms, FusedExpert,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16),
                                            ::testing::Values(Given::halves, Given::apart, Given::all_experts)));

/// Weights of 2 scale the result, not the experts' input, and only once.
TEST(FusedExpertWeighting, TwiceTheWeightIsTwiceTheResult) {
  const Inputs in(DType::f32);
  const Tensor two = filled({tokens, top_k}, 2);
  EXPECT_EQ(run([&](const Context& context, Group& group) -> Status {
              const int r = group.rank();
              const FusedExpertWeights weights{.up = half(mine(in.gate_up, r), 1), .gate = half(mine(in.gate_up, r), 0), .down = mine(in.down, r)};
              PLAIT_ASSIGN_OR_RETURN(const FusedExpertResult one, mc2_fused_expert(context, group, mine(in.x, r), weights, mine(in.ids, r)));
              PLAIT_ASSIGN_OR_RETURN(const FusedExpertResult twice, mc2_fused_expert(context, group, mine(in.x, r), weights, mine(in.ids, r), two));
              for (int64_t i = 0; i < tokens * hidden; ++i) set(one.y, i, 2 * get(one.y, i));
              const std::string difference = bit_difference(one.y, twice.y);
              return difference.empty() ? Status() : Status::internal(difference);
            }),
            "");
}

void expect_refused(const std::function<void(FusedExpertWeights&, TensorView& ids, FusedExpertOptions&)>& change, const std::string& words) {
  const Inputs in(DType::f32);
  const std::string error = run([&](const Context& context, Group& group) -> Status {
    const int r = group.rank();
    FusedExpertWeights weights{.up = half(mine(in.gate_up, r), 1), .gate = half(mine(in.gate_up, r), 0), .down = mine(in.down, r)};
    TensorView ids = mine(in.ids, r);
    FusedExpertOptions options;
    if (r == 1) change(weights, ids, options);
    return mc2_fused_expert(context, group, mine(in.x, r), weights, ids, {}, options).status();
  });
  EXPECT_NE(error.find(words), std::string::npos) << error;
}

TEST(FusedExpertErrors, NameTheValueAndTheRule) {
  expect_refused([](auto&, auto&, FusedExpertOptions& o) { o.num_experts = 8; },
                 "weights of 3 experts are given; 8 experts on 2 ranks need 4 or all 8");
  expect_refused([](FusedExpertWeights& w, auto&, auto&) { w.gate = {}; }, "activation swiglu needs a gate weight");
  expect_refused([](FusedExpertWeights& w, auto&, auto&) { w.gate.shape[1] = 6; }, "both need one shape and type");
  expect_refused([](auto&, auto&, FusedExpertOptions& o) { o.activation.interleaved = true; }, "separate weights mean [gate | up]");
  expect_refused([](auto&, TensorView& ids, auto&) { ids = ids.slice(0, 5); }, "all dimensions but the last must be equal");
}

}  // namespace
}  // namespace plait::test
