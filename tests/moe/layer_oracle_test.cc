// The layer against double precision, and the double-precision gradients against finite differences.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "support/layer_case.h"
#include "support/layer_oracle.h"

namespace plait::test {
namespace {

struct Convention {
  std::string name;
  LayerConfig config;
  InputOptions inputs;
};

/// Every path that has a gradient formula of its own.
std::vector<Convention> conventions() {
  std::vector<Convention> list;
  auto add = [&](const char* name, auto change) {
    Convention c{name, small_config(DType::f32), {}};
    c.config.hidden = 9;
    c.config.intermediate = 7;
    c.inputs.tokens = 6;
    c.inputs.seed = 21 + list.size();
    change(c);
    list.push_back(c);
  };
  add("softmax_normalised", [](Convention&) {});
  add("softmax_plain_losses", [](Convention& c) {
    c.config.router.norm_topk = false;
    c.config.router.aux_loss = 0.3F;
    c.config.router.aux_loss_times_k = true;
    c.config.router.z_loss = 0.1F;
    c.inputs.router_bias = true;
  });
  add("sigmoid_losses", [](Convention& c) {
    c.config.router.score = ScoreFunction::sigmoid;
    c.config.router.scaling = 2.5F;
    c.config.router.aux_loss = 0.3F;
    c.inputs.choice_bias = true;
  });
  add("topk_softmax_clamped", [](Convention& c) {
    c.config.router.score = ScoreFunction::topk_softmax;
    c.config.activation.kind = ActivationKind::swiglu_clamped;
    c.config.activation.interleaved = true;
    c.config.activation.limit = 0.6F;
    c.config.expert_bias = true;
    c.config.router.aux_loss = 0.2F;
  });
  add("gated_shared", [](Convention& c) {
    c.config.shared_intermediate = 5;
    c.config.shared_gate = true;
  });
  add("shared_geglu", [](Convention& c) {
    c.config.shared_intermediate = 5;
    c.config.activation.kind = ActivationKind::geglu_tanh;
  });
  add("given_relu2", [](Convention& c) {
    c.config.activation.kind = ActivationKind::relu2;
    c.config.expert_bias = true;
    c.inputs.given_routing = true;
  });
  return list;
}

std::vector<int64_t> ids_of(const RankResult& r) {
  std::vector<int64_t> ids;
  for (double id : to_vector(r.ids)) ids.push_back(static_cast<int64_t>(id));
  return ids;
}

/// The worst |got - expected| over the scale of `expected`.
double worst(const Tensor& got, const Doubles& expected) {
  double scale = 1e-3, error = 0;
  for (double v : expected) scale = std::max(scale, std::fabs(v));
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::fabs(get(got, static_cast<int64_t>(i)) - expected[i]);
    error = std::isnan(difference) ? INFINITY : std::max(error, difference);
  }
  return error / scale;
}

class LayerOracle : public testing::TestWithParam<Convention> {
 protected:
  /// Everything that one rank gets, within `tolerance` of the double-precision layer.
  void expect_close(const LayerInputs& in, double tolerance) const {
    const Result<std::vector<RankResult>> run = run_layer(in, {in.num_tokens()});
    ASSERT_TRUE(run.ok()) << run.status().to_string();
    const RankResult& got = run.value()[0];
    const DoubleLayer layer(in, ids_of(got));
    DoubleParameters d = layer.gradients();
    EXPECT_LT(worst(got.y, layer.forward()), tolerance) << "y";
    EXPECT_LT(worst(got.dx, d.x), tolerance) << "dx";
    EXPECT_LT(worst(got.dweights, d.weights), tolerance) << "dweights";
    EXPECT_LT(worst(got.weights, layer.entry_weights()), tolerance) << "weights";
    EXPECT_LT(worst(got.router, d.router), tolerance) << "router";
    EXPECT_LT(worst(got.router_bias, d.router_bias), tolerance) << "router bias";
    EXPECT_LT(worst(got.gate_up, d.gate_up), tolerance) << "gate_up";
    EXPECT_LT(worst(got.gate_up_bias, d.gate_up_bias), tolerance) << "gate_up bias";
    EXPECT_LT(worst(got.down, d.down), tolerance) << "down";
    EXPECT_LT(worst(got.down_bias, d.down_bias), tolerance) << "down bias";
    EXPECT_LT(worst(got.shared_gate_up, d.shared_gate_up), tolerance) << "shared gate_up";
    EXPECT_LT(worst(got.shared_down, d.shared_down), tolerance) << "shared down";
    EXPECT_LT(worst(got.shared_gate, d.shared_gate), tolerance) << "shared gate";
    if (in.ids.defined()) return;
    EXPECT_NEAR(got.losses.load_balancing, layer.load_balancing(), 0.02);
    EXPECT_NEAR(got.losses.z, layer.z(), 0.02 * (1 + layer.z()));
  }
};

TEST_P(LayerOracle, Float32IsClose) { expect_close(make_inputs(GetParam().config, GetParam().inputs), 2e-5); }

TEST_P(LayerOracle, Bfloat16IsAsCloseAsItsRounding) {
  LayerConfig config = GetParam().config;
  config.dtype = DType::bf16;
  expect_close(make_inputs(config, GetParam().inputs), 0.06);
}

TEST_P(LayerOracle, Float16IsAsCloseAsItsRounding) {
  LayerConfig config = GetParam().config;
  config.dtype = DType::f16;
  expect_close(make_inputs(config, GetParam().inputs), 8e-3);
}

/// Central differences of the objective, for some elements of every parameter.
TEST_P(LayerOracle, GradientsAreThoseOfTheObjective) {
  const LayerInputs in = make_inputs(GetParam().config, GetParam().inputs);
  const Result<std::vector<RankResult>> run = run_layer(in, {in.num_tokens()});
  ASSERT_TRUE(run.ok()) << run.status().to_string();
  DoubleLayer layer(in, ids_of(run.value()[0]));
  const DoubleParameters gradients = layer.gradients();
  layer.parameters.for_each([&](const char* what, auto member) {
    Doubles& values = layer.parameters.*member;
    for (size_t i = 0; i < values.size(); i += 1 + values.size() / 25) {
      const double kept = values[i], step = 1e-5;
      values[i] = kept + step;
      const double up = layer.objective();
      values[i] = kept - step;
      const double down = layer.objective();
      values[i] = kept;
      EXPECT_NEAR((up - down) / (2 * step), (gradients.*member)[i], 1e-6) << what << " " << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Conventions, LayerOracle, testing::ValuesIn(conventions()), [](const auto& param_info) { return param_info.param.name; });

/// The layer itself, f32: the loss sum(y * dy) moves by the gradient's product with a step.
TEST(LayerFiniteDifferences, LossMovesAsTheGradientSays) {
  LayerConfig config = small_config(DType::f32);
  config.shared_intermediate = 6;
  config.shared_gate = true;
  LayerInputs in = make_inputs(config, {.tokens = 12, .seed = 31, .given_routing = true});
  auto loss = [&] {
    const std::vector<RankResult> r = run_layer(in, {12}).take();
    double sum = 0;
    for (int64_t i = 0; i < in.dy.view.num_elements(); ++i) sum += get(r[0].y, i) * get(in.dy, i);
    return sum;
  };
  const std::vector<RankResult> r = run_layer(in, {12}).take();
  const std::vector<std::pair<Tensor, Tensor>> pairs = {{in.x, r[0].dx},      {in.weights, r[0].dweights},        {in.gate_up, r[0].gate_up},
                                                        {in.down, r[0].down}, {in.shared_gate, r[0].shared_gate}, {in.shared_down, r[0].shared_down}};
  for (const auto& pair : pairs) {
    const Tensor &values = pair.first, &gradient = pair.second;
    double norm = 0;
    for (double g : to_vector(gradient)) norm += g * g;
    const double step = 1e-3 / std::sqrt(norm);
    const std::vector<double> kept = to_vector(values);
    auto move = [&](double factor) {
      for (size_t i = 0; i < kept.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        set(values, at, kept[i] + factor * get(gradient, at));
      }
      return loss();
    };
    const double up = move(step), down = move(-step);
    move(0);
    EXPECT_NEAR((up - down) / (2 * step * norm), 1.0, 0.02);
  }
}

}  // namespace
}  // namespace plait::test
