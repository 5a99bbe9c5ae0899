#pragma once
/// Rows of elements, outside the matmuls: conversions, sums, dots, exp and log, activations. One table per tier, the same bits in all.
/// All functions expect FloatMode to be set (ThreadPool::parallel_for does that), work on contiguous rows of any alignment and any
/// n >= 0, and read nothing beyond them.

#include <cstddef>
#include <cstdint>

#include "plait/activation.h"
#include "plait/tensor.h"

namespace plait::kernels {

/// One term of a sum of rows, and what is done with it. A sum is a list of steps over a stack of partial sums, so that one pass over the
/// columns adds in any fixed order: plain ascending sums (every step but the first joins) and trees (ops/weighted_tree.h) alike.
struct SumStep {
  const std::byte* row = nullptr;
  DType type = DType::f32;
  bool scaled = false;  ///< the term is weight * row, a rounded float32 product; otherwise the row itself
  bool joins = false;   ///< the term is added to the top of the stack; otherwise pushed on it
  uint8_t merges = 0;   ///< afterwards, so many times, the two topmost are replaced by their sum
  float weight = 1.0F;
};
/// Most partial sums a list of steps may have on the stack at a time: a tree over 2^31 experts needs 32.
inline constexpr int max_sum_depth = 32;

struct ElementwiseKernels {
  /// Exact conversion to float32 of f32, bf16 or f16 (f16 subnormals are ordinary values; f32/bf16 denormals become signed zero).
  void (*load)(DType type, const std::byte* x, float* y, int64_t n);
  /// Rounds to `type`, nearest even; f32 and bf16 denormals become signed zero, f16 keeps subnormals and overflows to inf; NaN quietened.
  void (*store)(DType type, const float* x, std::byte* y, int64_t n);

  /// Our own polynomials (numerics.md section 5). exp: 0 for -inf, inf on overflow; log: -inf for 0, NaN below.
  void (*exp)(const float* x, float* y, int64_t n);
  void (*log)(const float* x, float* y, int64_t n);

  /// 1 / (1 + exp(-x)).
  void (*sigmoid)(const float* x, float* y, int64_t n);

  /// 16 interleaved lanes (element i to lane i mod 16), combined l+8, l+4, l+2, l+1. Max of n >= 1 elements, none of them NaN.
  float (*sum)(const float* x, int64_t n);
  float (*max)(const float* x, int64_t n);
  /// The dot of numerics.md section 5: blocks of 64, 16 lanes, block sums in ascending order.
  float (*dot)(DType type, const std::byte* a, const std::byte* b, int64_t n);

  /// out = w * x, one rounded float32 product per element.
  void (*scale)(DType type, float w, const std::byte* x, float* out, int64_t n);
  /// acc += w * x: a rounded product, then a rounded sum (not fused).
  void (*scale_add)(DType type, float w, const std::byte* x, float* acc, int64_t n);
  /// acc += x.
  void (*add)(DType type, const std::byte* x, float* acc, int64_t n);

  /// out (n columns of `out_type`) = the sum that the steps describe, in float32, rounded once; +0 without steps. A step that pushes on an
  /// empty stack starts the sum with its term (nothing is added to zero). `out` may be one of the rows, where that has `out_type`.
  void (*sum_rows)(const SumStep* steps, int64_t num_steps, DType out_type, std::byte* out, int64_t n);

  /// act (n columns) from one row h (2n, or n ungated).
  void (*activation_forward)(const Activation& activation, DType type, const std::byte* h, std::byte* act, int64_t n);
  /// dh (as h) from da, the gradient of act, times `w` (a rounded float32 product); act_w, where not null, receives round(w * act),
  /// act being the rounded forward value. w == 0 (|w| < 2^-126): both rows are +0, whatever h and da hold. act_w may be da itself.
  void (*activation_backward)(const Activation& activation, DType type, const std::byte* h, const std::byte* da, float w, std::byte* dh,
                              std::byte* act_w, int64_t n);
};

/// True where a weight makes its entry absent (numerics.md section 4): |w| < 2^-126, either sign.
inline bool is_absent(float w) { return w < 0x1p-126F && w > -0x1p-126F; }

}  // namespace plait::kernels
