/// Activations against their formulas in double: values, derivatives (finite differences of the formula), clamps, huge inputs, weights of 0.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/float_mode.h"
#include "kernels/elementwise_support.h"
#include "support/test_tensors.h"

namespace plait::test {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// act of one (gate, up) pair; up is ignored by relu2.
double formula(const Activation& a, double gate, double up) {
  double limit = a.limit, alpha = a.alpha;
  switch (a.kind) {
    case ActivationKind::swiglu:
      return gate * sigmoid(gate) * up;
    case ActivationKind::swiglu_clamped:
      gate = std::min(gate, limit);
      up = std::clamp(up, -limit, limit);
      return (up + 1) * gate * sigmoid(alpha * gate);
    case ActivationKind::geglu_tanh:
      return 0.5 * gate * (1 + std::tanh(std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate))) * up;
    case ActivationKind::relu2:
      return gate > 0 ? gate * gate : 0;
  }
  return 0;
}

/// The argument of exp in a kind's formula: each of its float32 roundings makes a relative error of |argument| * 2^-24 in the result.
double exp_argument(const Activation& a, double gate) {
  if (a.kind == ActivationKind::swiglu_clamped) return a.alpha * gate;
  if (a.kind == ActivationKind::geglu_tanh) return 2 * std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate);
  return gate;
}

const Activation all_activations[] = {{.kind = ActivationKind::swiglu},         {.kind = ActivationKind::swiglu, .interleaved = true},
                                      {.kind = ActivationKind::swiglu_clamped}, {.kind = ActivationKind::swiglu_clamped, .interleaved = true},
                                      {.kind = ActivationKind::geglu_tanh},     {.kind = ActivationKind::geglu_tanh, .interleaved = true},
                                      {.kind = ActivationKind::relu2}};

/// Columns of h that belong to activation column i.
struct Columns {
  int64_t gate, up;
};
Columns columns_of(const Activation& a, int64_t n, int64_t i) {
  if (!a.gated()) return {i, i};
  return a.interleaved ? Columns{2 * i, 2 * i + 1} : Columns{i, n + i};
}

std::string describe(const std::string& tier, const Activation& a, DType type, int64_t i) {
  return tier + " kind " + std::to_string(static_cast<int>(a.kind)) + (a.interleaved ? " interleaved " : " ") + std::string(name(type)) + " column " +
         std::to_string(i);
}

/// Half an ulp of the type plus 8 of float32 at `scale`, the largest intermediate.
double tolerance(DType type, double value, double scale) {
  double half_ulp = type == DType::f32 ? 0x1p-24 : type == DType::bf16 ? 0x1p-8 : 0x1p-11;
  return half_ulp * std::fabs(value) * 1.001 + 8 * 0x1p-24 * scale + (type == DType::f16 ? 0x1p-25 : 0x1p-126);
}

TEST(ElementwiseActivation, ForwardFollowsTheFormula) {
  FloatMode mode;
  constexpr int64_t n = 1000;
  for (const auto& [tier, kernels] : elementwise_tiers()) {
    for (const Activation& a : all_activations) {
      for (DType type : floating_types) {
        Tensor h = random_tensor(type, {a.hidden_columns(n)}, 7, -12.0F, 12.0F), act = make_tensor(type, {n});
        kernels->activation_forward(a, type, h.view.data, act.view.data, n);
        for (int64_t i = 0; i < n; ++i) {
          auto [gate, up] = columns_of(a, n, i);
          double expected = formula(a, get(h, gate), get(h, up));
          double scale = std::fabs(expected) * (1 + std::fabs(exp_argument(a, get(h, gate))) / 4);
          // 1e-15: what 1 + tanh is good for in double
          ASSERT_NEAR(get(act, i), expected, tolerance(type, expected, scale) + 1e-15 * std::fabs(get(h, gate) * get(h, up)))
              << describe(tier, a, type, i);
        }
      }
    }
  }
}

/// d formula / d gate (or up) by a central difference in double.
double slope(const Activation& a, double gate, double up, bool by_up) {
  constexpr double step = 1e-5;
  double high = by_up ? formula(a, gate, up + step) : formula(a, gate + step, up);
  double low = by_up ? formula(a, gate, up - step) : formula(a, gate - step, up);
  return (high - low) / (2 * step);
}

TEST(ElementwiseActivation, BackwardFollowsTheDerivative) {
  FloatMode mode;
  constexpr int64_t n = 500;
  constexpr float weight = 0.625F;
  for (const auto& [tier, kernels] : elementwise_tiers()) {
    for (const Activation& a : all_activations) {
      for (DType type : floating_types) {
        Tensor h = random_tensor(type, {a.hidden_columns(n)}, 8, -9.0F, 9.0F), da = random_tensor(type, {n}, 9);
        Tensor dh = make_tensor(type, {a.hidden_columns(n)}), act_w = make_tensor(type, {n});
        kernels->activation_backward(a, type, h.view.data, da.view.data, weight, dh.view.data, act_w.view.data, n);
        for (int64_t i = 0; i < n; ++i) {
          auto [gate_at, up_at] = columns_of(a, n, i);
          double gate = get(h, gate_at), up = get(h, up_at), g = weight * get(da, i);
          bool at_a_kink = a.kind == ActivationKind::swiglu_clamped && (std::fabs(gate - 7) < 1e-4 || std::fabs(std::fabs(up) - 7) < 1e-4);
          if (at_a_kink) continue;
          double scale = std::fabs(g) * (10 + std::fabs(up)) + 1e-4;  // 1e-4: what the difference quotient is good for
          double dgate = g * slope(a, gate, up, false), dup = g * slope(a, gate, up, true);
          ASSERT_NEAR(get(dh, gate_at), dgate, tolerance(type, dgate, scale) + 1e-7) << describe(tier, a, type, i);
          if (!a.gated()) continue;
          ASSERT_NEAR(get(dh, up_at), dup, tolerance(type, dup, scale) + 1e-7) << describe(tier, a, type, i);
        }
      }
    }
  }
}

TEST(ElementwiseActivation, WeightedActivationIsMadeFromTheRoundedOne) {
  FloatMode mode;
  constexpr int64_t n = 300;
  constexpr float weight = 0.7F;
  for (const auto& [tier, kernels] : elementwise_tiers()) {
    for (const Activation& a : all_activations) {
      for (DType type : floating_types) {
        Tensor h = random_tensor(type, {a.hidden_columns(n)}, 10, -4.0F, 4.0F), da = random_tensor(type, {n}, 11), act = make_tensor(type, {n});
        Tensor dh = make_tensor(type, {a.hidden_columns(n)}), act_w = make_tensor(type, {n}), expected = make_tensor(type, {n});
        kernels->activation_forward(a, type, h.view.data, act.view.data, n);
        kernels->activation_backward(a, type, h.view.data, da.view.data, weight, dh.view.data, act_w.view.data, n);
        for (int64_t i = 0; i < n; ++i) set(expected, i, weight * static_cast<float>(get(act, i)));
        ASSERT_EQ(bit_difference(act_w, expected), "") << describe(tier, a, type, 0);
      }
    }
  }
}

/// h = [10, -9, -1, 0.5] in (gate, up) pairs, and the pair (-10, 2), which a lower limit of gate would change to -1.406e-4.
TEST(ElementwiseActivation, ClampedPairs) {
  FloatMode mode;
  const float h[] = {10, -9, -1, 0.5F, -10, 2};
  const float da[] = {1, 1, 1};
  const Activation clamped{.kind = ActivationKind::swiglu_clamped, .interleaved = true};
  for (const auto& [tier, kernels] : elementwise_tiers()) {
    float act[3], dh[6];
    kernels->activation_forward(clamped, DType::f32, reinterpret_cast<const std::byte*>(h), reinterpret_cast<std::byte*>(act), 3);
    EXPECT_NEAR(act[0], -41.999719, 4e-6) << tier;
    EXPECT_NEAR(act[1], -0.231306, 5e-7) << tier;
    EXPECT_NEAR(act[2], -1.2174e-6, 5e-11) << tier;
    kernels->activation_backward(clamped, DType::f32, reinterpret_cast<const std::byte*>(h), reinterpret_cast<const std::byte*>(da), 1.0F,
                                 reinterpret_cast<std::byte*>(dh), nullptr, 3);
    EXPECT_EQ(bits_of(dh[0]), bits_of(0.0F)) << tier;
    EXPECT_EQ(bits_of(dh[1]), bits_of(0.0F)) << tier;
    for (int i = 2; i < 6; ++i) EXPECT_NE(dh[i], 0.0F) << tier << " " << i;
  }
}

TEST(ElementwiseActivation, NothingIsClampedAtTheLimitItself) {
  FloatMode mode;
  const Activation clamped{.kind = ActivationKind::swiglu_clamped};
  for (const auto& [tier, kernels] : elementwise_tiers()) {
    for (float up : {7.0F, -7.0F}) {
      const float h[] = {7.0F, up}, da = 1;
      float dh[2];
      kernels->activation_backward(clamped, DType::f32, reinterpret_cast<const std::byte*>(h), reinterpret_cast<const std::byte*>(&da), 1.0F,
                                   reinterpret_cast<std::byte*>(dh), nullptr, 1);
      EXPECT_NE(dh[0], 0.0F) << tier;
      EXPECT_NE(dh[1], 0.0F) << tier;
    }
  }
}

TEST(ElementwiseActivation, FiniteInputsGiveNoNan) {
  FloatMode mode;
  const float values[] = {0.0F,   -0.0F,   1.0F,  -1.0F,  20.0F, -20.0F, 88.5F,     -88.5F,
                          100.0F, -100.0F, 1e10F, -1e10F, 3e38F, -3e38F, 0x1p-126F, -0x1p-149F};
  for (const auto& [tier, kernels] : elementwise_tiers()) {
    for (const Activation& a : all_activations) {
      for (float gate : values) {
        const float h[] = {gate, 0.5F}, da = 1;
        float act, dh[2];
        kernels->activation_forward(a, DType::f32, reinterpret_cast<const std::byte*>(h), reinterpret_cast<std::byte*>(&act), 1);
        kernels->activation_backward(a, DType::f32, reinterpret_cast<const std::byte*>(h), reinterpret_cast<const std::byte*>(&da), 1.0F,
                                     reinterpret_cast<std::byte*>(dh), nullptr, 1);
        EXPECT_FALSE(std::isnan(act)) << describe(tier, a, DType::f32, 0) << " gate " << gate;
        EXPECT_FALSE(std::isnan(dh[0])) << describe(tier, a, DType::f32, 0) << " gate " << gate;
        if (gate < -200 && a.gated()) {
          EXPECT_EQ(act, 0.0F) << tier << " gate " << gate;
          EXPECT_EQ(dh[0], 0.0F) << tier << " gate " << gate;
        }
      }
    }
  }
}

TEST(ElementwiseActivation, AnAbsentWeightGivesPositiveZerosWhateverTheRowsHold) {
  FloatMode mode;
  constexpr int64_t n = 37;
  for (const auto& [tier, kernels] : elementwise_tiers()) {
    for (const Activation& a : all_activations) {
      for (DType type : floating_types) {
        for (float weight : {0.0F, -0.0F, 0x1p-127F, -0x1.fffffcp-127F}) {
          Tensor h = make_tensor(type, {a.hidden_columns(n)}), da = make_tensor(type, {n});  // NaN throughout
          Tensor dh = make_tensor(type, {a.hidden_columns(n)}), act_w = make_tensor(type, {n});
          kernels->activation_backward(a, type, h.view.data, da.view.data, weight, dh.view.data, act_w.view.data, n);
          Tensor zeros = tensor_of(type, {n}, std::vector<double>(n)), more = tensor_of(type, {2 * n}, std::vector<double>(2 * n));
          ASSERT_EQ(bit_difference(act_w, zeros), "") << describe(tier, a, type, 0);
          ASSERT_EQ(bit_difference(dh.view.slice(0, a.hidden_columns(n)), more.view.slice(0, a.hidden_columns(n))), "") << describe(tier, a, type, 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace plait::test
