// 16 float lanes in two ymm registers (AVX2, FMA, F16C). What each operation means is defined by vec_scalar.h.
// Included once, by elementwise_avx2.cc, inside its anonymous namespace and target region.

struct Vec {
  __m256 low, high;
};
struct Mask {
  __m256 low, high;
};

PLAIT_LANES_INLINE Vec broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
PLAIT_LANES_INLINE __m256 flush(__m256 a) {
  const __m256 sign = _mm256_and_ps(a, _mm256_set1_ps(-0.0F));
  const __m256i exponent = _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7f800000));
  return _mm256_blendv_ps(a, sign, _mm256_castsi256_ps(_mm256_cmpeq_epi32(exponent, _mm256_setzero_si256())));
}
PLAIT_LANES_INLINE Vec flush(Vec a) { return {flush(a.low), flush(a.high)}; }
PLAIT_LANES_INLINE Vec operator-(Vec a) { return {_mm256_xor_ps(a.low, _mm256_set1_ps(-0.0F)), _mm256_xor_ps(a.high, _mm256_set1_ps(-0.0F))}; }
PLAIT_LANES_INLINE Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
PLAIT_LANES_INLINE Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
PLAIT_LANES_INLINE Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
PLAIT_LANES_INLINE Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
PLAIT_LANES_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)}; }
PLAIT_LANES_INLINE Mask operator<(Vec a, Vec b) { return {_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ)}; }
PLAIT_LANES_INLINE Vec select(Mask m, Vec yes, Vec no) {
  return {_mm256_blendv_ps(no.low, yes.low, m.low), _mm256_blendv_ps(no.high, yes.high, m.high)};
}
PLAIT_LANES_INLINE Vec max_of(Vec a, Vec b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
PLAIT_LANES_INLINE Vec min_of(Vec a, Vec b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }

PLAIT_LANES_INLINE __m256 power_of_2(__m256i n) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23)); }
PLAIT_LANES_INLINE __m256 times_pow2(__m256 a, __m256 n) {
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  return _mm256_mul_ps(_mm256_mul_ps(a, power_of_2(half)), power_of_2(_mm256_sub_epi32(whole, half)));
}
PLAIT_LANES_INLINE Vec times_pow2(Vec a, Vec n) { return {times_pow2(a.low, n.low), times_pow2(a.high, n.high)}; }
PLAIT_LANES_INLINE __m256 split_exponent(__m256 x, __m256* mantissa) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i e = _mm256_srai_epi32(_mm256_sub_epi32(bits, _mm256_set1_epi32(sqrt_half_bits)), 23);
  *mantissa = _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(e, 23)));
  return _mm256_cvtepi32_ps(e);
}
PLAIT_LANES_INLINE Vec split_exponent(Vec x, Vec* mantissa) {
  return {split_exponent(x.low, &mantissa->low), split_exponent(x.high, &mantissa->high)};
}

PLAIT_LANES_INLINE float add_scalars(float a, float b) { return a + b; }
PLAIT_LANES_INLINE float sum_lanes(Vec a) {
  __m256 y = _mm256_add_ps(a.low, a.high);
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
PLAIT_LANES_INLINE float max_lanes(Vec a) {
  __m256 y = _mm256_max_ps(a.low, a.high);
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

PLAIT_LANES_INLINE __m256 halves_in_order(__m256 a) {  // quarters 0, 2, 1, 3
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(a), 0xd8));
}
PLAIT_LANES_INLINE void deinterleave(Vec* a, Vec* b) {
  const Vec first = *a, second = *b;
  a->low = halves_in_order(_mm256_shuffle_ps(first.low, first.high, 0x88));
  a->high = halves_in_order(_mm256_shuffle_ps(second.low, second.high, 0x88));
  b->low = halves_in_order(_mm256_shuffle_ps(first.low, first.high, 0xdd));
  b->high = halves_in_order(_mm256_shuffle_ps(second.low, second.high, 0xdd));
}
PLAIT_LANES_INLINE Vec interleave(__m256 even, __m256 odd) {
  const __m256 low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
  return {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}
PLAIT_LANES_INLINE void interleave(Vec* a, Vec* b) {
  const Vec even = *a, odd = *b;
  *a = interleave(even.low, odd.low);
  *b = interleave(even.high, odd.high);
}

PLAIT_LANES_INLINE __m128i load_8_halves(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

PLAIT_LANES_INLINE Vec load_f32(const std::byte* p) {
  const auto* x = reinterpret_cast<const float*>(p);
  return {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)};
}
PLAIT_LANES_INLINE void store_f32(std::byte* p, Vec a) {
  auto* x = reinterpret_cast<float*>(p);
  _mm256_storeu_ps(x, a.low);
  _mm256_storeu_ps(x + 8, a.high);
}
PLAIT_LANES_INLINE __m256 bf16_to_f32(__m128i halves) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16)); }
PLAIT_LANES_INLINE Vec load_bf16(const std::byte* p) { return {bf16_to_f32(load_8_halves(p)), bf16_to_f32(load_8_halves(p + 16))}; }
PLAIT_LANES_INLINE __m256i bf16_bits(__m256 a) {  // in the low half of each 32 bits
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
}
PLAIT_LANES_INLINE void store_bf16(std::byte* p, Vec a) {
  const __m256i packed = _mm256_packus_epi32(bf16_bits(a.low), bf16_bits(a.high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
PLAIT_LANES_INLINE Vec load_f16(const std::byte* p) { return {_mm256_cvtph_ps(load_8_halves(p)), _mm256_cvtph_ps(load_8_halves(p + 16))}; }
PLAIT_LANES_INLINE void store_f16(std::byte* p, Vec a) {
  auto* x = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(x, _mm256_cvtps_ph(a.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128(x + 1, _mm256_cvtps_ph(a.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
