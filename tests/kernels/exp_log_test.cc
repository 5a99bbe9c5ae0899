/// exp, log and sigmoid against double, over a sample of all float32 inputs; their special values; equal bits in all tiers.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/float_mode.h"
#include "kernels/elementwise_support.h"

namespace plait::test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

using UnaryRow = void (*)(const float*, float*, int64_t);

constexpr int64_t row_length = 4096;

/// Every `stride`-th of the 2^32 bit patterns: fn(x) for rows of row_length floats.
template <typename Fn>
void for_sampled_rows(uint32_t stride, Fn fn) {
  std::vector<float> x(row_length);
  uint64_t pattern = 0;
  while (pattern < uint64_t{1} << 32) {
    for (float& value : x) {
      value = std::bit_cast<float>(static_cast<uint32_t>(pattern));
      pattern += stride;
    }
    fn(x);
  }
}
std::vector<float> results(UnaryRow function, const std::vector<float>& x) {
  FloatMode mode;
  std::vector<float> y(x.size());
  function(x.data(), y.data(), row_length);
  return y;
}

struct Worst {
  double error = 0;
  float at = 0;
  void see(double e, float x) {
    if (e > error || std::isnan(e)) error = e, at = x;
  }
};

/// The error of y = f(x), in ulp, where the exact result is a normal number; beyond, the exact 0 or infinity is demanded.
double error_at(float x, float y, double (*exact)(double)) {
  double seen = std::fabs(x) < 0x1p-126F ? std::copysign(0.0, x) : static_cast<double>(x);  // denormals are taken as zero
  double e = exact(seen);
  if (std::fabs(std::fabs(e) / 0x1p-126 - 1) < 1e-7) return 0;  // either side of the flush is right
  if (std::fabs(e) < 0x1p-126) return y == 0 ? 0 : HUGE_VAL;
  if (std::fabs(e) >= 0x1.ffffffp127 && std::fabs(e) < HUGE_VAL) return std::isinf(y) ? 0 : HUGE_VAL;
  return ulps(y, e);
}

Worst worst_error(UnaryRow function, double (*exact)(double), uint32_t stride) {
  Worst worst;
  for_sampled_rows(stride, [&](const std::vector<float>& x) {
    std::vector<float> y = results(function, x);
    for (size_t i = 0; i < x.size(); ++i) worst.see(error_at(x[i], y[i], exact), x[i]);
  });
  return worst;
}

// Primes, so that mantissas differ in every binade: 4 million inputs, and fewer for the reference and where an emulator runs the tests.
constexpr uint32_t stride = PLAIT_TEST_EMULATED ? 20011 : 1009;
constexpr uint32_t coarse_stride = PLAIT_TEST_EMULATED ? 100003 : 10007;

// The bounds are those found over all 2^32 inputs.
TEST(ExpLog, ExpIsWithinItsBound) {
  Worst worst = worst_error(
      elementwise_tiers().back().kernels->exp, [](double x) { return std::exp(x); }, stride);
  EXPECT_LT(worst.error, 1.01) << "at " << worst.at;
}
TEST(ExpLog, LogIsWithinItsBound) {
  Worst worst = worst_error(
      elementwise_tiers().back().kernels->log, [](double x) { return std::log(x); }, stride);
  EXPECT_LT(worst.error, 0.82) << "at " << worst.at;
}
TEST(ExpLog, SigmoidIsWithinItsBound) {
  Worst worst = worst_error(
      elementwise_tiers().back().kernels->sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, stride);
  EXPECT_LT(worst.error, 2.5) << "at " << worst.at;
}

TEST(ExpLog, SpecialValues) {
  FloatMode mode;
  for (const auto& [tier, kernels] : elementwise_tiers()) {
    auto exp = [&, k = kernels](float x) {
      k->exp(&x, &x, 1);
      return x;
    };
    auto log = [&, k = kernels](float x) {
      k->log(&x, &x, 1);
      return x;
    };
    auto sigmoid = [&, k = kernels](float x) {
      k->sigmoid(&x, &x, 1);
      return x;
    };
    SCOPED_TRACE(tier);
    EXPECT_EQ(bits_of(exp(-infinity)), bits_of(0.0F));
    EXPECT_EQ(exp(infinity), infinity);
    EXPECT_EQ(exp(88.8F), infinity);
    EXPECT_LT(exp(88.722F), infinity);
    EXPECT_EQ(bits_of(exp(-88.0F)), bits_of(0.0F));  // 6e-39 would be a denormal
    EXPECT_GE(exp(-87.33F), 0x1p-126F);
    EXPECT_TRUE(std::isnan(exp(nan)));
    for (float x : {0.0F, -0.0F, 0x1p-149F, -0x1p-130F}) EXPECT_EQ(exp(x), 1.0F) << x;
    EXPECT_EQ(log(infinity), infinity);
    EXPECT_EQ(bits_of(log(1.0F)), bits_of(0.0F));
    for (float x : {0.0F, -0.0F, 0x1p-127F, -0x1p-127F}) EXPECT_EQ(log(x), -infinity) << x;
    for (float x : {-1.0F, -0x1p-126F, -infinity, nan}) EXPECT_TRUE(std::isnan(log(x))) << x;
    EXPECT_EQ(sigmoid(0.0F), 0.5F);
    EXPECT_EQ(sigmoid(infinity), 1.0F);
    EXPECT_EQ(bits_of(sigmoid(-infinity)), bits_of(0.0F));
    EXPECT_EQ(bits_of(sigmoid(-1e30F)), bits_of(0.0F));
    EXPECT_TRUE(std::isnan(sigmoid(nan)));
  }
}

TEST(ExpLog, TiersHaveTheBitsOfTheReference) {
  for (const auto& [tier, table] : elementwise_tiers()) {
    const auto& of_tier = table;  // a lambda of clang 14 cannot refer to a structured binding
    for (auto function : {&kernels::ElementwiseKernels::exp, &kernels::ElementwiseKernels::log, &kernels::ElementwiseKernels::sigmoid}) {
      int64_t differences = 0;
      for_sampled_rows(coarse_stride, [&](const std::vector<float>& x) {
        std::vector<float> y = results(of_tier->*function, x), expected(x.size());
        (reference_elementwise().*function)(x.data(), expected.data(), row_length);  // no FloatMode: the reference does not depend on it
        for (size_t i = 0; i < x.size(); ++i) differences += bits_of(y[i]) != bits_of(expected[i]);
      });
      EXPECT_EQ(differences, 0) << tier;
    }
  }
}

}  // namespace
}  // namespace plait::test
