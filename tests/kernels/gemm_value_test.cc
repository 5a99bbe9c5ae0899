// What the products are, checked without the reference tier: exact integers, float64, and values worked out by hand.

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "kernels/gemm_problem.h"
#include "kernels/gemm_reference.h"

namespace plait::test {
namespace {

constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};

std::vector<const Context*> all_contexts() {
  std::vector<const Context*> contexts = vector_contexts();
  contexts.push_back(&reference_context());
  return contexts;
}

/// x (rows, k) times w (k, n), one group.
Tensor multiply(const Context& context, const Tensor& x, const Tensor& w, DType out, const Tensor& bias = {}) {
  const int64_t counts[] = {x.view.shape[0]};
  Tensor y = make_tensor(out, {x.view.shape[0], w.view.shape[1]});
  kernels::MGroupedGemm problem{};
  problem.in = x.view.dtype;
  problem.out = out;
  problem.k = w.view.shape[0];
  problem.n = w.view.shape[1];
  problem.counts = counts;
  problem.x = {x.view.data, problem.k * size_of(problem.in), nullptr};
  problem.weights = {w.view.data, 0, problem.n, 1};
  problem.bias = bias.view.data;
  problem.bias_type = bias.view.dtype;
  problem.y = {y.view.data, problem.n * size_of(out), nullptr};
  EXPECT_TRUE(kernels::m_grouped_gemm(context, problem).ok());
  return y;
}

/// x^T (k, rows) times dy (rows, n), one group.
Tensor gradient(const Context& context, const Tensor& x, const Tensor& dy, DType out) {
  const int64_t counts[] = {x.view.shape[0]};
  Tensor dw = make_tensor(out, {x.view.shape[1], dy.view.shape[1]});
  kernels::KGroupedGemm problem{};
  problem.in = x.view.dtype;
  problem.out = out;
  problem.k = x.view.shape[1];
  problem.n = dy.view.shape[1];
  problem.counts = counts;
  problem.x = {x.view.data, problem.k * size_of(problem.in), nullptr};
  problem.dy = {dy.view.data, problem.n * size_of(problem.in), nullptr};
  problem.dw = dw.view.data;
  problem.dw_k_stride = problem.n;
  EXPECT_TRUE(kernels::k_grouped_gemm(context, problem).ok());
  return dw;
}

TEST(GemmValue, IntegersAreExact) {
  for (const Context* context : all_contexts()) {
    for (DType type : types) {
      Tensor x = integer_tensor(type, {23, 131}, 1), w = integer_tensor(type, {131, 75}, 2), dy = integer_tensor(type, {23, 75}, 3);
      auto a = to_vector(x), b = to_vector(w), c = to_vector(dy);
      Tensor y = multiply(*context, x, w, DType::f32), dw = gradient(*context, x, dy, DType::f32);
      for (int64_t i = 0; i < 23 * 75; ++i) {
        int64_t sum = 0;
        for (int64_t k = 0; k < 131; ++k) {
          sum += static_cast<int64_t>(a[static_cast<size_t>(i / 75 * 131 + k)]) * static_cast<int64_t>(b[static_cast<size_t>(k * 75 + i % 75)]);
        }
        ASSERT_EQ(get(y, i), static_cast<double>(sum)) << name(context->tier()) << " " << name(type) << " y " << i;
      }
      for (int64_t i = 0; i < 131 * 75; ++i) {
        int64_t sum = 0;
        for (int64_t r = 0; r < 23; ++r) {
          sum += static_cast<int64_t>(a[static_cast<size_t>(r * 131 + i / 75)]) * static_cast<int64_t>(c[static_cast<size_t>(r * 75 + i % 75)]);
        }
        ASSERT_EQ(get(dw, i), static_cast<double>(sum)) << name(context->tier()) << " " << name(type) << " dw " << i;
      }
    }
  }
}

double half_ulp(DType type, double value) {
  const int digits = type == DType::f32 ? 24 : type == DType::bf16 ? 8 : 11;
  int exponent = 0;
  std::frexp(value, &exponent);
  if (type == DType::f16) exponent = std::max(exponent, -13);
  return std::ldexp(0.5, exponent - digits);
}

TEST(GemmValue, WithinTheBoundOfFloat64) {
  constexpr int64_t rows = 9, k = 700, n = 70;
  for (const Context* context : all_contexts()) {
    for (DType type : types) {
      Tensor x = filled_tensor(type, {rows, k}, Fill::wide, 4), w = filled_tensor(type, {k, n}, Fill::wide, 5);
      Tensor bias = filled_tensor(type, {n}, Fill::wide, 6);
      Tensor y = multiply(*context, x, w, type, bias);
      double worst = 0;
      for (int64_t i = 0; i < rows * n; ++i) {
        double exact = get(bias, i % n), magnitude = std::fabs(exact), sum_a = 0, sum_b = 0;
        for (int64_t j = 0; j < k; ++j) {
          double a = get(x, i / n * k + j), b = get(w, j * n + i % n);
          exact += a * b;
          magnitude += std::fabs(a * b);
          sum_a += std::fabs(a);
          sum_b += std::fabs(b);
        }
        const double u = 0x1p-24, gamma = (k + 1) * u / (1 - (k + 1) * u);
        double bound = gamma * magnitude + 0x1p-126 * (k + sum_a + sum_b) + half_ulp(type, exact);
        worst = std::max(worst, std::fabs(get(y, i) - exact) / bound);
      }
      EXPECT_LE(worst, 1.0) << name(context->tier()) << " " << name(type);
      EXPECT_GT(worst, 0.0) << "a rounded result cannot be exact everywhere";
    }
  }
}

TEST(GemmValue, ABfloat16ChainTakesTheOddElementOfAPairFirst) {
  for (const Context* context : all_contexts()) {
    // 2^-24 is half an ulp of 1: added to 1 it vanishes, added before 1 or after 1 has gone it stays.
    Tensor ones = tensor_of(DType::bf16, {4, 1}, {1, 1, 1, 1});
    const std::vector<double> vanishing = {1, 0, -1, 0x1p-24}, staying = {1, 0, 0x1p-24, -1};
    EXPECT_EQ(get(multiply(*context, tensor_of(DType::bf16, {1, 4}, vanishing), ones, DType::f32), 0), 0.0) << name(context->tier());
    EXPECT_EQ(get(multiply(*context, tensor_of(DType::bf16, {1, 4}, staying), ones, DType::f32), 0), 0x1p-24) << name(context->tier());
    EXPECT_EQ(get(gradient(*context, tensor_of(DType::bf16, {4, 1}, vanishing), ones, DType::f32), 0), 0.0) << name(context->tier());
    EXPECT_EQ(get(gradient(*context, tensor_of(DType::bf16, {4, 1}, staying), ones, DType::f32), 0), 0x1p-24) << name(context->tier());
  }
}

TEST(GemmValue, OtherChainsAscend) {
  for (const Context* context : all_contexts()) {
    for (DType type : {DType::f32, DType::f16}) {
      Tensor ones = tensor_of(type, {4, 1}, {1, 1, 1, 1});
      Tensor staying = tensor_of(type, {1, 4}, {1, 0, -1, 0x1p-24}), vanishing = tensor_of(type, {1, 4}, {1, 0, 0x1p-24, -1});
      EXPECT_EQ(get(multiply(*context, staying, ones, DType::f32), 0), 0x1p-24) << name(context->tier());
      EXPECT_EQ(get(multiply(*context, vanishing, ones, DType::f32), 0), 0.0) << name(context->tier());
    }
  }
}

TEST(GemmValue, OneFusedRoundingPerProduct) {
  // (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24; minus 1 + 2^-11 leaves 2^-24 only where the product was not rounded.
  for (const Context* context : all_contexts()) {
    Tensor x = tensor_of(DType::f32, {1, 2}, {1, 1 + 0x1p-12}), w = tensor_of(DType::f32, {2, 1}, {-(1 + 0x1p-11), 1 + 0x1p-12});
    EXPECT_EQ(get(multiply(*context, x, w, DType::f32), 0), 0x1p-24) << name(context->tier());
  }
}

TEST(GemmValue, AMissingLastElementIsPlusZero) {
  for (const Context* context : all_contexts()) {
    // -0 comes from -1 * 0; the missing element's fma turns the chain's +0 start into +0 again, so the sign is +.
    Tensor x = tensor_of(DType::bf16, {1, 1}, {-1}), w = tensor_of(DType::bf16, {1, 1}, {0});
    EXPECT_FALSE(std::signbit(get(multiply(*context, x, w, DType::f32), 0))) << name(context->tier());
  }
}

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(GemmValue, DenormalsCountAsZeroAndResultsFlush) {
  const float denormal = from_bits(0x007fffff), smallest = from_bits(0x00800000);
  for (const Context* context : all_contexts()) {
    const auto tier = name(context->tier());
    auto product = [&](float a, float b) {
      Tensor x = make_tensor(DType::f32, {1, 1}), w = make_tensor(DType::f32, {1, 1});
      *x.as<float>() = a;
      *w.as<float>() = b;
      return std::bit_cast<uint32_t>(*multiply(*context, x, w, DType::f32).as<float>());
    };
    EXPECT_EQ(product(denormal, 0x1p100F), 0U) << tier;
    EXPECT_EQ(product(0x1p100F, denormal), 0U) << tier;
    EXPECT_EQ(product(smallest, 1.0F), 0x00800000U) << tier;
    EXPECT_EQ(product(smallest, 0.5F), 0U) << tier;
    EXPECT_EQ(product(-smallest, 0.5F), 0x80000000U) << tier;
    Tensor x = make_tensor(DType::bf16, {1, 2}), w = tensor_of(DType::bf16, {2, 1}, {1, 1});
    x.as<uint16_t>()[0] = 0x0080;  // 2^-126
    x.as<uint16_t>()[1] = 0x007f;  // a denormal
    EXPECT_EQ(get(multiply(*context, x, w, DType::f32), 0), 0x1p-126) << tier;
    x.as<uint16_t>()[1] = 0x8080;
    EXPECT_EQ(get(multiply(*context, x, w, DType::f32), 0), 0.0) << tier;
    // f16 subnormals are ordinary values, in and out.
    Tensor h = make_tensor(DType::f16, {1, 1}), one = tensor_of(DType::f16, {1, 1}, {1});
    h.as<uint16_t>()[0] = 0x0001;
    EXPECT_EQ(get(multiply(*context, h, one, DType::f32), 0), 0x1p-24) << tier;
    EXPECT_EQ(*multiply(*context, h, one, DType::f16).as<uint16_t>(), 0x0001) << tier;
  }
}

#if !defined(__aarch64__)  // which may flush before rounding
TEST(GemmValue, ResultsFlushAfterRounding) {
  for (const Context* context : all_contexts()) {
    Tensor w = tensor_of(DType::f32, {2, 1}, {1, -0x1p-51});
    EXPECT_EQ(get(multiply(*context, tensor_of(DType::f32, {1, 2}, {0x1p-126, 0x1p-100}), w, DType::f32), 0), 0x1p-126) << name(context->tier());
    Tensor x = tensor_of(DType::f32, {1, 2}, {0x1p-126, 0x1p-100 * (1 + 0x1p-20)});
    EXPECT_EQ(get(multiply(*context, x, w, DType::f32), 0), 0.0) << name(context->tier());
  }
}
#endif

TEST(GemmValue, RoundingOfTheLastStore) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const Context* context : all_contexts()) {
    const auto tier = name(context->tier());
    auto sum = [&](DType type, std::vector<double> values) {
      const auto k = static_cast<int64_t>(values.size());
      return get(multiply(*context, tensor_of(type, {1, k}, values), tensor_of(type, {k, 1}, std::vector<double>(values.size(), 1)), type), 0);
    };
    EXPECT_EQ(sum(DType::bf16, {256, 1}), 256.0) << tier;  // the tie goes to the even one
    EXPECT_EQ(sum(DType::bf16, {256, 3}), 260.0) << tier;
    EXPECT_EQ(sum(DType::bf16, {256, 1, 0x1p-10}), 258.0) << tier;
    EXPECT_EQ(sum(DType::f16, {2048, 1}), 2048.0) << tier;
    EXPECT_EQ(sum(DType::f16, {2048, 3}), 2052.0) << tier;
    EXPECT_EQ(sum(DType::f16, {65504, 15}), 65504.0) << tier;
    EXPECT_EQ(sum(DType::f16, {65504, 16}), inf) << tier;
    EXPECT_EQ(sum(DType::f16, {-65504, -16}), -inf) << tier;
    EXPECT_EQ(sum(DType::f16, {0x1p-24, 0x1p-24, 0x1p-24}), 3 * 0x1p-24) << tier;
    // Products below f16's range, halfway between two of its subnormals.
    Tensor x = tensor_of(DType::f16, {1, 1}, {0x1p-14}), w = tensor_of(DType::f16, {1, 1}, {5 * 0x1p-11});
    EXPECT_EQ(get(multiply(*context, x, w, DType::f16), 0), 2 * 0x1p-24) << tier;
  }
}

TEST(GemmValue, NanAndInfinityStayInTheirRowAndColumn) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  for (const Context* context : all_contexts()) {
    for (DType type : types) {
      Tensor x = integer_tensor(type, {13, 37}, 7, 1, 3), w = integer_tensor(type, {37, 70}, 8, 1, 3);
      Tensor clean = multiply(*context, x, w, type);
      set(x, 4 * 37 + 11, nan);
      set(x, 6 * 37 + 36, inf);
      set(w, 5 * 70 + 65, nan);
      Tensor y = multiply(*context, x, w, type);
      for (int64_t r = 0; r < 13; ++r) {
        for (int64_t c = 0; c < 70; ++c) {
          double value = get(y, r * 70 + c);
          if (r == 4 || c == 65)
            ASSERT_TRUE(std::isnan(value)) << name(context->tier()) << " " << r << "," << c;
          else if (r == 6)
            ASSERT_EQ(value, inf) << name(context->tier()) << " " << r << "," << c;
          else
            ASSERT_EQ(value, get(clean, r * 70 + c)) << name(context->tier()) << " " << r << "," << c;
        }
      }
    }
  }
}

TEST(GemmValue, ChainStepEqualsAFusedMultiplyAdd) {
  Random random(3);
  for (int i = 0; i < 200000; ++i) {
    // Exponents where neither operands nor results are denormal, and often close enough for cancellation.
    auto number = [&](int spread) { return std::ldexp(random.uniform(-1, 1), static_cast<int>(random.below(spread)) - spread / 2); };
    float a = number(20), b = number(20), c = i % 2 == 0 ? number(40) : -a * b * (1 + static_cast<float>(random.below(3)) * 0x1p-23F);
    float expected = std::fma(a, b, c);
    if (expected != 0 && std::fabs(expected) < 0x1p-100F) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(kernels::chain_step(a, b, c)), std::bit_cast<uint32_t>(expected)) << a << " " << b << " " << c;
  }
}

TEST(GemmValue, ChainStepFlushesAfterRounding) {
  const float smallest = 0x1p-126F;
  EXPECT_EQ(kernels::chain_step(smallest, 1 - 0x1p-24F, 0), 0.0F);  // 2^-126 - 2^-150 is below the range
  EXPECT_EQ(kernels::chain_step(0x1p-63F, 0x1p-63F, 0), smallest);
  // 2^-126 (1 - 2^-46) rounds to 2^-126.
  EXPECT_EQ(kernels::chain_step(0x1p-63F * (1 + 0x1p-23F), 0x1p-63F * (1 - 0x1p-23F), 0), smallest);
  // 2^-126 - 2^-151 is half-way to the next number of 24 bits below: the tie goes to 2^-126, what is under it does not.
  EXPECT_EQ(kernels::chain_step(0x1p-100F, -0x1p-51F, smallest), smallest);
  EXPECT_EQ(kernels::chain_step(0x1p-100F, -0x1p-51F * (1 + 0x1p-20F), smallest), 0.0F);
  EXPECT_TRUE(std::signbit(kernels::chain_step(-smallest, 0.5F, 0)));
}

}  // namespace
}  // namespace plait::test
