/// load and store: every 16-bit pattern, and roundings against an independent definition (the test tensors' own conversions).

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "base/float_mode.h"
#include "kernels/elementwise_support.h"
#include "support/test_tensors.h"

namespace plait::test {
namespace {

constexpr int64_t num_patterns = 65536;

std::vector<uint16_t> all_patterns() {
  std::vector<uint16_t> patterns(num_patterns);
  for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  return patterns;
}

float flushed(double x) { return std::fabs(x) < 0x1p-126 ? std::copysign(0.0F, static_cast<float>(x)) : static_cast<float>(x); }

TEST(ElementwiseConvert, LoadsEveryPattern) {
  std::vector<uint16_t> patterns = all_patterns();
  const auto* bytes = reinterpret_cast<const std::byte*>(patterns.data());
  for (const auto& [tier, kernels] : elementwise_tiers()) {
    for (DType type : {DType::bf16, DType::f16}) {
      std::vector<float> y(num_patterns);
      {
        FloatMode mode;
        kernels->load(type, bytes, y.data(), num_patterns);
      }
      ConstTensorView view(bytes, type, {num_patterns});
      for (int64_t i = 0; i < num_patterns; ++i) {
        float expected = type == DType::f16 ? static_cast<float>(get(view, i)) : flushed(get(view, i));
        ASSERT_EQ(bits_of(y[static_cast<size_t>(i)]), bits_of(expected)) << tier << " " << name(type) << " pattern " << i;
      }
    }
  }
}

TEST(ElementwiseConvert, StoresBackEveryPattern) {
  std::vector<uint16_t> patterns = all_patterns();
  const auto* bytes = reinterpret_cast<const std::byte*>(patterns.data());
  FloatMode mode;
  for (const auto& [tier, kernels] : elementwise_tiers()) {
    for (DType type : {DType::bf16, DType::f16}) {
      std::vector<float> y(num_patterns);
      std::vector<uint16_t> back(num_patterns);
      kernels->load(type, bytes, y.data(), num_patterns);
      kernels->store(type, y.data(), reinterpret_cast<std::byte*>(back.data()), num_patterns);
      uint32_t quiet = type == DType::f16 ? 0x0200 : 0x0040, exponent = type == DType::f16 ? 0x7c00 : 0x7f80;
      for (uint32_t i = 0; i < num_patterns; ++i) {
        bool is_nan = (i & 0x7fff) > exponent;
        bool is_denormal = (i & exponent) == 0;
        uint32_t expected = is_nan ? i | quiet : is_denormal && type == DType::bf16 ? i & 0x8000 : i;
        if (is_nan) {
          ASSERT_GT(back[i] & 0x7fffU, exponent) << tier << " pattern " << i;
          ASSERT_NE(back[i] & quiet, 0U) << tier << " pattern " << i;
        } else {
          ASSERT_EQ(back[i], expected) << tier << " " << name(type) << " pattern " << i;
        }
      }
    }
  }
}

/// Around every pattern p of the type: p itself, the tie between p and its successor, and the float32 neighbours of that tie.
std::vector<float> values_around_ties(DType type) {
  std::vector<uint16_t> patterns = all_patterns();
  ConstTensorView view(patterns.data(), type, {num_patterns});
  std::vector<float> values;
  uint16_t largest = type == DType::f16 ? 0x7bff : 0x7f7f;
  for (int64_t i = 0; i < largest; ++i) {
    auto tie = static_cast<float>((get(view, i) + get(view, i + 1)) / 2);
    for (float x : {static_cast<float>(get(view, i)), std::nextafter(tie, 0.0F), tie, std::nextafter(tie, HUGE_VALF)}) {
      values.push_back(x);
      values.push_back(-x);
    }
  }
  return values;
}

TEST(ElementwiseConvert, RoundsToNearestEven) {
  for (DType type : {DType::bf16, DType::f16}) {
    std::vector<float> values = values_around_ties(type);
    std::vector<float> more = any_values(11, 100000);
    values.insert(values.end(), more.begin(), more.end());
    for (float& x : values) x = flushed(x);
    std::vector<std::byte> expected = row_of(type, values), got(expected.size());
    for (const auto& [tier, kernels] : elementwise_tiers()) {
      FloatMode mode;
      kernels->store(type, values.data(), got.data(), static_cast<int64_t>(values.size()));
      EXPECT_EQ(row_difference(type, got.data(), expected.data(), static_cast<int64_t>(values.size())), "") << tier << " " << name(type);
    }
  }
}

TEST(ElementwiseConvert, FlushesWhetherTheModeIsSetOrNot) {
  const float x[] = {0x1p-127F, -0x1p-149F, 0x1.fffffcp-127F, 0x1p-126F, -0.0F};
  const float expected[] = {0.0F, -0.0F, 0.0F, 0x1p-126F, -0.0F};
  for (const auto& [tier, kernels] : elementwise_tiers()) {
    float y[5];
    kernels->load(DType::f32, reinterpret_cast<const std::byte*>(x), y, 5);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(bits_of(y[i]), bits_of(expected[i])) << tier << " " << i;
    uint16_t stored[5];
    kernels->store(DType::bf16, x, reinterpret_cast<std::byte*>(stored), 5);
    const uint16_t expected_bf16[] = {0, 0x8000, 0, 0x0080, 0x8000};
    for (int i = 0; i < 5; ++i) EXPECT_EQ(stored[i], expected_bf16[i]) << tier << " " << i;
  }
}

TEST(ElementwiseConvert, SignallingNanIsQuietened) {
  auto signalling = std::bit_cast<float>(0x7f800001U);
  for (const auto& [tier, kernels] : elementwise_tiers()) {
    FloatMode mode;
    uint16_t half[2];
    kernels->store(DType::bf16, &signalling, reinterpret_cast<std::byte*>(&half[0]), 1);
    kernels->store(DType::f16, &signalling, reinterpret_cast<std::byte*>(&half[1]), 1);
    EXPECT_EQ(half[0] & 0x7fc0, 0x7fc0) << tier;
    EXPECT_EQ(half[1] & 0x7e00, 0x7e00) << tier;
  }
}

}  // namespace
}  // namespace plait::test
