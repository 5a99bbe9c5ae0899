// 16 float lanes in one zmm register (AVX-512 F, BW, DQ, VL). What each operation means is defined by vec_scalar.h.
// Included by elementwise_avx512.cc and, with PLAIT_NATIVE_BF16, by elementwise_avx512_bf16.cc, inside the anonymous namespace and target
// region of each.

struct Vec {
  __m512 v;
};
struct Mask {
  __mmask16 m;
};

PLAIT_LANES_INLINE Vec broadcast(float x) { return {_mm512_set1_ps(x)}; }
PLAIT_LANES_INLINE Vec flush(Vec a) {
  const __mmask16 zero_or_denormal = _mm512_fpclass_ps_mask(a.v, 0x26);
  return {_mm512_mask_and_ps(a.v, zero_or_denormal, a.v, _mm512_set1_ps(-0.0F))};
}
PLAIT_LANES_INLINE Vec operator-(Vec a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0F))}; }
PLAIT_LANES_INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
PLAIT_LANES_INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
PLAIT_LANES_INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
PLAIT_LANES_INLINE Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
PLAIT_LANES_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
PLAIT_LANES_INLINE Mask operator<(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
PLAIT_LANES_INLINE Vec select(Mask m, Vec yes, Vec no) { return {_mm512_mask_blend_ps(m.m, no.v, yes.v)}; }
PLAIT_LANES_INLINE Vec max_of(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
PLAIT_LANES_INLINE Vec min_of(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
PLAIT_LANES_INLINE Vec times_pow2(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }
PLAIT_LANES_INLINE Vec split_exponent(Vec x, Vec* mantissa) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i e = _mm512_srai_epi32(_mm512_sub_epi32(bits, _mm512_set1_epi32(sqrt_half_bits)), 23);
  mantissa->v = _mm512_castsi512_ps(_mm512_sub_epi32(bits, _mm512_slli_epi32(e, 23)));
  return {_mm512_cvtepi32_ps(e)};
}

PLAIT_LANES_INLINE float add_scalars(float a, float b) { return a + b; }
PLAIT_LANES_INLINE float sum_lanes(Vec a) {
  __m256 y = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
PLAIT_LANES_INLINE float max_lanes(Vec a) {
  __m256 y = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

PLAIT_LANES_INLINE void deinterleave(Vec* a, Vec* b) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  const __m512 low = a->v, high = b->v;
  a->v = _mm512_permutex2var_ps(low, even, high);
  b->v = _mm512_permutex2var_ps(low, odd, high);
}
PLAIT_LANES_INLINE void interleave(Vec* a, Vec* b) {
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  const __m512 even = a->v, odd = b->v;
  a->v = _mm512_permutex2var_ps(even, first, odd);
  b->v = _mm512_permutex2var_ps(even, second, odd);
}

PLAIT_LANES_INLINE __m256i load_halves(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
PLAIT_LANES_INLINE void store_halves(std::byte* p, __m256i h) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), h); }

PLAIT_LANES_INLINE Vec load_f32(const std::byte* p) { return {_mm512_loadu_ps(p)}; }
PLAIT_LANES_INLINE void store_f32(std::byte* p, Vec a) { _mm512_storeu_ps(p, a.v); }
PLAIT_LANES_INLINE Vec load_bf16(const std::byte* p) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_halves(p)), 16))}; }
#if defined(PLAIT_NATIVE_BF16)
PLAIT_LANES_INLINE void store_bf16(std::byte* p, Vec a) { store_halves(p, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a.v))); }
#else
PLAIT_LANES_INLINE void store_bf16(std::byte* p, Vec a) {
  const __m512i bits = _mm512_castps_si512(a.v), one = _mm512_set1_epi32(1);
  const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  rounded = _mm512_mask_add_epi32(rounded, odd, rounded, one);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
  store_halves(p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}
#endif
PLAIT_LANES_INLINE Vec load_f16(const std::byte* p) { return {_mm512_cvtph_ps(load_halves(p))}; }
PLAIT_LANES_INLINE void store_f16(std::byte* p, Vec a) { store_halves(p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }
