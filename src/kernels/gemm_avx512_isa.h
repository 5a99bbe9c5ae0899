// The 512-bit vector type. Included once per file, inside its target region and anonymous namespace; PLAIT_PAIRS tells whether the
// instruction set multiplies bf16 pairs.

struct Isa {
  using V = __m512;
  static constexpr int width = 16;
  static constexpr int panel_vectors = 4;
  static constexpr int max_rows = 6;  // 24 accumulators, 4 vectors of b, 1 of a
  static constexpr bool has_pairs = PLAIT_PAIRS;

  static V zero() { return _mm512_setzero_ps(); }
  static V load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, V v) { _mm512_storeu_ps(p, v); }
  static V add(V a, V b) { return _mm512_add_ps(a, b); }
  static V fma(V acc, V a, V b) { return _mm512_fmadd_ps(a, b, acc); }
  static V broadcast(const std::byte* p) {
    float unit;
    __builtin_memcpy(&unit, p, sizeof unit);
    return _mm512_set1_ps(unit);
  }
#if PLAIT_PAIRS
  static V dot_pairs(V acc, V a, V b) { return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b); }
#endif

  template <DType type>
  static V load_as(const std::byte* p) {
    if constexpr (type == DType::f32) return _mm512_loadu_ps(p);
    __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if constexpr (type == DType::f16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  template <DType type>
  static void store_as(std::byte* p, V v) {
    if constexpr (type == DType::f32) {
      _mm512_storeu_ps(p, v);
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), type == DType::f16 ? _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT) : to_bf16(v));
    }
  }
  static constexpr int stream_bytes = 64;
  template <DType type>
  static void stream_as(std::byte* p, V a, V b) {
    if constexpr (type == DType::f32) {
      _mm512_stream_ps(reinterpret_cast<float*>(p), a);
      _mm512_stream_ps(reinterpret_cast<float*>(p + 64), b);
    } else {
      static_assert(type == DType::bf16);
      _mm512_stream_si512(reinterpret_cast<__m512i*>(p), _mm512_inserti64x4(_mm512_castsi256_si512(to_bf16(a)), to_bf16(b), 1));
    }
  }
  static void end_streams() { _mm_sfence(); }
  static __m256i to_bf16(V v) {
#if PLAIT_PAIRS
    return (__m256i)_mm512_cvtneps_pbh(v);
#else
    __m512i bits = _mm512_castps_si512(v);
    __m512i even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
#endif
  }
  static V swap_neighbours(V v) { return _mm512_permute_ps(v, 0xb1); }
  static V low_half(V v) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(v), 16)); }
  static V high_half(V v) { return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(static_cast<int>(0xffff0000U)))); }
  static void keep(V& v) { __asm__("" : "+v"(v)); }
  /// A panel's elements of two bf16 rows to its units (the even element in the low half).
  static void interleave(const std::byte* even, const std::byte* odd, V out[panel_vectors]) {
    const __m512i first =
        _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    PLAIT_UNROLL
    for (int j = 0; j < panel_vectors; j += 2) {
      __m512i a = _mm512_loadu_si512(even + j * 32);
      __m512i b = _mm512_loadu_si512(odd + j * 32);
      out[j] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, first, b));
      out[j + 1] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, second, b));
    }
  }
  /// 16 x 16 words: within 128-bit lanes first, then the lanes themselves.
  static void transpose(V rows[16]) {
    V t[16];
    PLAIT_UNROLL
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    PLAIT_UNROLL
    for (int i = 0; i < 16; i += 4) {
      rows[i] = low_pairs(t[i], t[i + 2]);
      rows[i + 1] = high_pairs(t[i], t[i + 2]);
      rows[i + 2] = low_pairs(t[i + 1], t[i + 3]);
      rows[i + 3] = high_pairs(t[i + 1], t[i + 3]);
    }
    PLAIT_UNROLL
    for (int i = 0; i < 4; ++i) {
      V low01 = _mm512_shuffle_f32x4(rows[i], rows[i + 4], 0x88);
      V high01 = _mm512_shuffle_f32x4(rows[i], rows[i + 4], 0xdd);
      V low23 = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], 0x88);
      V high23 = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], 0xdd);
      t[i] = _mm512_shuffle_f32x4(low01, low23, 0x88);
      t[i + 8] = _mm512_shuffle_f32x4(low01, low23, 0xdd);
      t[i + 4] = _mm512_shuffle_f32x4(high01, high23, 0x88);
      t[i + 12] = _mm512_shuffle_f32x4(high01, high23, 0xdd);
    }
    PLAIT_UNROLL
    for (int i = 0; i < 16; ++i) rows[i] = t[i];
  }
  static V low_pairs(V a, V b) { return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))); }
  static V high_pairs(V a, V b) { return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))); }
};
