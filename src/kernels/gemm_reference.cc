#include "kernels/gemm_reference.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace plait::kernels {
namespace {

float flushed(float x) {
  auto bits = std::bit_cast<uint32_t>(x);
  return (bits & 0x7f800000U) != 0 ? x : std::bit_cast<float>(bits & 0x80000000U);
}

template <typename T>
T load(const std::byte* row, int64_t i) {
  T value;
  std::memcpy(&value, row + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}
template <typename T>
void store(std::byte* row, int64_t i, T value) {
  std::memcpy(row + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

float from_f16(uint16_t half) {
  uint32_t sign = (half & 0x8000U) << 16;
  uint32_t exponent = half >> 10 & 31U;
  uint32_t mantissa = half & 1023U;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | mantissa << 13);
  if (exponent == 0) return std::copysign(static_cast<float>(mantissa) * 0x1p-24F, std::bit_cast<float>(sign | 0x3f800000U));
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

/// `bits` / 2^shift, rounded to nearest even.
uint32_t shifted_even(uint32_t bits, uint32_t shift) { return (bits + (1U << (shift - 1)) - 1 + (bits >> shift & 1U)) >> shift; }

uint16_t to_f16(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  uint32_t sign = bits >> 16 & 0x8000U;
  uint32_t magnitude = bits & 0x7fffffffU;
  uint32_t half = 0;
  if (magnitude > 0x7f800000U) {
    half = 0x7e00U;
  } else if (magnitude >= 0x477ff000U) {  // 65520, half-way to the first power beyond the range
    half = 0x7c00U;
  } else if (magnitude >= 0x38800000U) {  // 2^-14, the smallest normal
    half = shifted_even(magnitude - 0x38000000U, 13);
  } else if (magnitude >= 0x33000000U) {  // 2^-25, half of the smallest subnormal
    half = shifted_even((magnitude & 0x7fffffU) | 0x800000U, 126 - (magnitude >> 23));
  }
  return static_cast<uint16_t>(sign | half);
}

uint16_t to_bf16(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40U);
  return static_cast<uint16_t>(shifted_even(bits, 16));
}

/// A chain over `length` products in the contract's order; a(i) and b(i) give the operands.
template <typename A, typename B>
float chain(DType type, int64_t length, A a, B b) {
  float acc = 0;
  if (type != DType::bf16) {
    for (int64_t i = 0; i < length; ++i) acc = chain_step(a(i), b(i), acc);
    return acc;
  }
  for (int64_t i = 0; i < length; i += 2) {
    bool pair = i + 1 < length;
    acc = chain_step(pair ? a(i + 1) : 0.0F, pair ? b(i + 1) : 0.0F, acc);
    acc = chain_step(a(i), b(i), acc);
  }
  return acc;
}

}  // namespace

float load_element(DType type, const std::byte* row, int64_t i) {
  switch (type) {
    case DType::bf16:
      return flushed(std::bit_cast<float>(static_cast<uint32_t>(load<uint16_t>(row, i)) << 16));
    case DType::f16:
      return from_f16(load<uint16_t>(row, i));
    default:
      return flushed(load<float>(row, i));
  }
}

void store_element(DType type, std::byte* row, int64_t i, float value) {
  switch (type) {
    case DType::bf16:
      return store(row, i, to_bf16(flushed(value)));
    case DType::f16:
      return store(row, i, to_f16(value));
    default:
      return store(row, i, flushed(value));
  }
}

// The product is exact in double, the sum is rounded to odd, which makes the second rounding, to float, the only one that counts.
float chain_step(float a, float b, float acc) {
  double product = static_cast<double>(flushed(a)) * static_cast<double>(flushed(b));
  double addend = flushed(acc);
  double sum = product + addend;
  if (!std::isfinite(sum)) return static_cast<float>(sum);
  double shadow = sum - product;
  double error = (product - (sum - shadow)) + (addend - shadow);
  auto bits = std::bit_cast<uint64_t>(sum);
  if (error != 0 && (bits & 1) == 0) bits += (error > 0) == (sum > 0) ? uint64_t{1} : ~uint64_t{0};
  sum = std::bit_cast<double>(bits);
  double magnitude = std::fabs(sum);
  if (magnitude >= 0x1p-126) return static_cast<float>(sum);
  // Rounded to 24 bits, from half-way below the smallest normal on (the tie goes to it, the even one).
  return std::copysign(magnitude >= 0x1p-126 - 0x1p-151 ? 0x1p-126F : 0.0F, std::bit_cast<uint64_t>(sum) >> 63 != 0 ? -1.0F : 1.0F);
}

void reference_m_tile(const MGroupedGemm& problem, const Tile& tile) {
  const int64_t in_bytes = size_of(problem.in);
  const Weights& w = problem.weights;
  const std::byte* weight = w.data + tile.group * w.group_stride * in_bytes;
  const std::byte* bias = problem.bias ? problem.bias + tile.group * problem.bias_group_stride * size_of(problem.bias_type) : nullptr;
  for (int64_t r = tile.row_begin; r < tile.row_end; ++r) {
    const std::byte* x = problem.x[tile.group_first_row + r];
    std::byte* y = problem.y[tile.group_first_row + r];
    for (int64_t c = tile.col_begin; c < tile.col_end; ++c) {
      float value = chain(
          problem.in, problem.k, [&](int64_t i) { return load_element(problem.in, x, i); },
          [&](int64_t i) { return load_element(problem.in, weight, i * w.k_stride + c * w.n_stride); });
      if (bias) value = chain_step(1.0F, value, load_element(problem.bias_type, bias, c));
      store_element(problem.out, y, c, value);
    }
  }
}

void reference_k_tile(const KGroupedGemm& problem, const Tile& tile) {
  const int64_t num_rows = problem.counts[static_cast<size_t>(tile.group)];
  if (num_rows == 0 && problem.accumulate) return;
  std::byte* dw = problem.dw + tile.group * problem.dw_group_stride * size_of(problem.out);
  for (int64_t i = tile.row_begin; i < tile.row_end; ++i) {
    for (int64_t j = tile.col_begin; j < tile.col_end; ++j) {
      float value = chain(
          problem.in, num_rows, [&](int64_t r) { return load_element(problem.in, problem.x[tile.group_first_row + r], i); },
          [&](int64_t r) { return load_element(problem.in, problem.dy[tile.group_first_row + r], j); });
      int64_t at = i * problem.dw_k_stride + j * problem.dw_n_stride;
      if (problem.accumulate) value = chain_step(1.0F, value, load_element(DType::f32, dw, at));
      store_element(problem.out, dw, at, value);
    }
  }
}

}  // namespace plait::kernels
