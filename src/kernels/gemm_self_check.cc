#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/float_mode.h"
#include "kernels/gemm_kernels.h"
#include "kernels/gemm_reference.h"
#include "kernels/gemm_tile.h"
#include "kernels/kernel_set.h"

namespace plait::kernels {
namespace {

constexpr int64_t block = 32, rows = 7, k = 2 * block + 5, n = max_panel_columns + 7;  // an odd k beyond one block of pairs, a partial panel

/// Small numbers, so that rounding differs with the order; a few rows carry what tiers might treat differently.
class Values {
 public:
  float next() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    auto bits = static_cast<uint32_t>(state_ >> 32);
    return static_cast<float>(static_cast<int32_t>(bits)) * std::ldexp(1.0F, -31 - static_cast<int>(bits % 13));
  }

 private:
  uint64_t state_ = 1;
};

std::vector<std::byte> matrix(DType type, int64_t num_rows, int64_t columns, Values& values) {
  std::vector<std::byte> data(static_cast<size_t>(num_rows * columns * size_of(type)));
  for (int64_t i = 0; i < num_rows * columns; ++i) store_element(type, data.data(), i, values.next());
  return data;
}

void put_specials(DType type, std::byte* row) {
  const uint32_t denormal = 1;  // the smallest one of every type, in little-endian order
  std::memcpy(row, &denormal, static_cast<size_t>(size_of(type)));
  store_element(type, row, 1, 0x1p-126F);
  store_element(type, row, 2, -0.0F);
}

bool same_bits(const std::vector<std::byte>& a, const std::vector<std::byte>& b, DType type) {
  for (int64_t i = 0; i < static_cast<int64_t>(a.size()) / size_of(type); ++i) {
    size_t bytes = static_cast<size_t>(size_of(type)), at = static_cast<size_t>(i) * bytes;
    bool both_nan = std::isnan(load_element(type, a.data(), i)) && std::isnan(load_element(type, b.data(), i));
    if (std::memcmp(&a[at], &b[at], bytes) != 0 && !both_nan) return false;
  }
  return true;
}

class Check {
 public:
  explicit Check(const GemmKernels& kernels) : kernels_(kernels) {}

  /// Forward products of both storages of the weights, result in `out`.
  bool m_grouped(DType in, DType out, bool transposed) {
    Values values;
    auto x = matrix(in, rows, k, values), w = matrix(in, k, n, values), bias = matrix(in, 1, n, values);
    put_specials(in, x.data());
    store_element(in, x.data(), k + 3, std::numeric_limits<float>::infinity());
    store_element(in, x.data(), 2 * k + 1, std::numeric_limits<float>::quiet_NaN());
    const int64_t in_bytes = size_of(in), out_bytes = size_of(out);
    std::vector<std::byte> results[2];
    for (auto& y : results) {
      y.assign(static_cast<size_t>(rows * n * out_bytes), std::byte{0xff});
      MGroupedGemm problem{};
      problem.in = in;
      problem.out = out;
      problem.k = k;
      problem.n = n;
      problem.x = {x.data(), k * in_bytes, nullptr};
      problem.weights = {w.data(), 0, transposed ? 1 : n, transposed ? k : 1};
      problem.bias = bias.data();
      problem.bias_type = in;
      problem.y = {y.data(), n * out_bytes, nullptr};
      Tile tile{0, 0, 0, rows, 0, n};
      if (&y == results)
        run_tile(kernels_, problem, limits_, tile, nullptr, memory(problem));
      else
        reference_m_tile(problem, tile);
    }
    return same_bits(results[0], results[1], out);
  }

  /// A weight gradient over the rows of x and dy, read as matrices of `k` rows.
  bool k_grouped(DType in, DType out, bool accumulate) {
    Values values;
    auto x = matrix(in, k, rows, values), dy = matrix(in, k, n, values), start = matrix(out, rows, n, values);
    put_specials(in, x.data());
    const int64_t counts[] = {k};
    std::vector<std::byte> results[2];
    for (auto& dw : results) {
      dw = start;
      KGroupedGemm problem{};
      problem.in = in;
      problem.out = out;
      problem.k = rows;
      problem.n = n;
      problem.counts = counts;
      problem.x = {x.data(), rows * size_of(in), nullptr};
      problem.dy = {dy.data(), n * size_of(in), nullptr};
      problem.dw = dw.data();
      problem.dw_k_stride = n;
      problem.accumulate = accumulate;
      Tile tile{0, 0, 0, rows, 0, n};
      if (&dw == results)
        run_tile(kernels_, problem, limits_, tile, nullptr, memory(problem));
      else
        reference_k_tile(problem, tile);
    }
    return same_bits(results[0], results[1], out);
  }

 private:
  template <typename Problem>
  float* memory(const Problem& problem) {
    memory_.resize(static_cast<size_t>(scratch_floats(problem, limits_)));
    return memory_.data();
  }

  static constexpr TileLimits limits_{max_panel_columns, 2 * max_panel_columns, block};
  const GemmKernels& kernels_;
  std::vector<float> memory_;
};

}  // namespace

bool gemm_self_check(const GemmKernels& kernels) {
  FloatMode mode;
  Check check(kernels);
  for (DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (DType out : {type, DType::f32}) {
      for (bool flag : {false, true}) {
        if (!check.m_grouped(type, out, flag)) return false;
        if (!check.k_grouped(type, out, flag && out == DType::f32)) return false;
      }
    }
  }
  return true;
}

}  // namespace plait::kernels
