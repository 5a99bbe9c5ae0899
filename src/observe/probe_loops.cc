// Built with baseline flags; only the regions below use an instruction set, and only the context's tier is run.

#include "observe/probe_loops.h"

#include <cmath>

#include "kernels/gemm_target.h"

namespace plait::probe {
namespace {

/// Latency times throughput asks for 8 chains on Zen 4, 12 on Zen 5, 16 on wide AArch64 cores. 12 vectors and an operand still fit
/// 16 registers. Separate variables, because GCC 12 spills an array of as many; separate starts, because equal chains would become one.
#define PLAIT_DECLARE_TWELVE(V, c, START)                                                                 \
  V c##0 = START(1), c##1 = START(2), c##2 = START(3), c##3 = START(4), c##4 = START(5), c##5 = START(6); \
  V c##6 = START(7), c##7 = START(8), c##8 = START(9), c##9 = START(10), c##10 = START(11), c##11 = START(12);
#define PLAIT_STEP_TWELVE(c)                                                                                                   \
  c##0 = PLAIT_STEP(c##0), c##1 = PLAIT_STEP(c##1), c##2 = PLAIT_STEP(c##2), c##3 = PLAIT_STEP(c##3), c##4 = PLAIT_STEP(c##4), \
  c##5 = PLAIT_STEP(c##5), c##6 = PLAIT_STEP(c##6), c##7 = PLAIT_STEP(c##7), c##8 = PLAIT_STEP(c##8), c##9 = PLAIT_STEP(c##9), \
  c##10 = PLAIT_STEP(c##10), c##11 = PLAIT_STEP(c##11);
#define PLAIT_SUM_TWELVE(c) (c##0 + c##1 + c##2 + c##3 + c##4 + c##5 + c##6 + c##7 + c##8 + c##9 + c##10 + c##11)

constexpr float factor = 1e-3F;  // products of 1e-6: the chains stay small and never reach denormals

}  // namespace

#if defined(__x86_64__)

PLAIT_TARGET_BEGIN("avx2,fma")
namespace {
float run_avx2(int64_t iterations) {
  __m256 x = _mm256_set1_ps(factor);
#define PLAIT_STEP(c) _mm256_fmadd_ps(x, x, c)
  PLAIT_DECLARE_TWELVE(__m256, c, _mm256_set1_ps)
  for (int64_t i = 0; i < iterations; ++i) {
    PLAIT_STEP_TWELVE(c)
  }
#undef PLAIT_STEP
  return _mm256_cvtss_f32(PLAIT_SUM_TWELVE(c));
}
}  // namespace
PLAIT_TARGET_END

PLAIT_TARGET_BEGIN("avx512f")
namespace {
float run_avx512(int64_t iterations) {
  __m512 x = _mm512_set1_ps(factor);
#define PLAIT_STEP(c) _mm512_fmadd_ps(x, x, c)
  PLAIT_DECLARE_TWELVE(__m512, c, _mm512_set1_ps)
  for (int64_t i = 0; i < iterations; ++i) {
    PLAIT_STEP_TWELVE(c)
  }
#undef PLAIT_STEP
  return _mm512_cvtss_f32(PLAIT_SUM_TWELVE(c));
}
}  // namespace
PLAIT_TARGET_END

PLAIT_TARGET_BEGIN("avx512f,avx512bw,avx512vl,avx512bf16")
namespace {
float run_avx512_bf16(int64_t iterations) {
  __m512 wide = _mm512_set1_ps(factor);
  __m512bh x = _mm512_cvtne2ps_pbh(wide, wide);
#define PLAIT_STEP(c) _mm512_dpbf16_ps(c, x, x)
  PLAIT_DECLARE_TWELVE(__m512, c, _mm512_set1_ps)
  for (int64_t i = 0; i < iterations; ++i) {
    PLAIT_STEP_TWELVE(c)
  }
#undef PLAIT_STEP
  return _mm512_cvtss_f32(PLAIT_SUM_TWELVE(c));
}
}  // namespace
PLAIT_TARGET_END

#elif defined(__aarch64__)

namespace {
float run_neon(int64_t iterations) {
  float32x4_t x = vdupq_n_f32(factor);
#define PLAIT_STEP(c) vfmaq_f32(c, x, x)
  PLAIT_DECLARE_TWELVE(float32x4_t, c, vdupq_n_f32)
  PLAIT_DECLARE_TWELVE(float32x4_t, d, -vdupq_n_f32)
  for (int64_t i = 0; i < iterations; ++i) {
    PLAIT_STEP_TWELVE(c)
    PLAIT_STEP_TWELVE(d)
  }
#undef PLAIT_STEP
  return vaddvq_f32(PLAIT_SUM_TWELVE(c) + PLAIT_SUM_TWELVE(d));
}
}  // namespace

#endif

namespace {

/// The reference tier's own arithmetic: std::fma, a library call where the baseline has no instruction for it.
float run_reference(int64_t iterations) {
  float x = factor;
#define PLAIT_STEP(c) std::fma(x, x, c)
  PLAIT_DECLARE_TWELVE(float, c, float)
  for (int64_t i = 0; i < iterations; ++i) {
    PLAIT_STEP_TWELVE(c)
  }
#undef PLAIT_STEP
  return PLAIT_SUM_TWELVE(c);
}

/// Flops of one round: two per lane and chain.
constexpr FlopsLoop loop(float (*run)(int64_t), double lanes, double chains = 12) { return {run, 2 * lanes * chains}; }

}  // namespace

FlopsLoop f32_loop(Tier tier) {
  switch (tier) {
#if defined(__x86_64__)
    case Tier::avx2:
      return loop(run_avx2, 8);
    case Tier::avx512:
    case Tier::avx512_bf16:
      return loop(run_avx512, 16);
#elif defined(__aarch64__)
    case Tier::neon:
      return loop(run_neon, 4, 24);
#endif
    default:
      return loop(run_reference, 1);
  }
}

FlopsLoop bf16_loop(Tier tier) {
#if defined(__x86_64__)
  if (tier == Tier::avx512_bf16) return loop(run_avx512_bf16, 32);
#endif
  return f32_loop(tier);
}

uint64_t read_bytes(const std::byte* p, int64_t bytes) {
  auto* words = reinterpret_cast<const uint64_t*>(p);
  uint64_t sums[16] = {};
  for (int64_t i = 0; i < bytes / 8; i += 16) {
    for (int64_t j = 0; j < 16; ++j) sums[j] += words[i + j];
  }
  uint64_t sum = 0;
  for (uint64_t s : sums) sum += s;
  return sum;
}

}  // namespace plait::probe
