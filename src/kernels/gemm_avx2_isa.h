// The 256-bit vector type. Included once, inside the target region and anonymous namespace of gemm_avx2.cc.

struct Isa {
  using V = __m256;
  static constexpr int width = 8;
  static constexpr int panel_vectors = 2;
  static constexpr int max_rows = 6;  // 12 accumulators, 2 vectors of b, 1 of a
  static constexpr bool has_pairs = false;

  static V zero() { return _mm256_setzero_ps(); }
  static V load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, V v) { _mm256_storeu_ps(p, v); }
  static V add(V a, V b) { return _mm256_add_ps(a, b); }
  static V fma(V acc, V a, V b) { return _mm256_fmadd_ps(a, b, acc); }
  static V broadcast(const std::byte* p) {
    float unit;
    __builtin_memcpy(&unit, p, sizeof unit);
    return _mm256_set1_ps(unit);
  }

  template <DType type>
  static V load_as(const std::byte* p) {
    if constexpr (type == DType::f32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
    __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    if constexpr (type == DType::f16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  template <DType type>
  static void store_as(std::byte* p, V v) {
    if constexpr (type == DType::f32) {
      _mm256_storeu_ps(reinterpret_cast<float*>(p), v);
    } else {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p), type == DType::f16 ? _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT) : to_bf16(v));
    }
  }
  static constexpr int stream_bytes = 64;
  template <DType type>
  static void stream_as(std::byte* p, V a, V b) {
    if constexpr (type == DType::f32) {
      _mm256_stream_ps(reinterpret_cast<float*>(p), a);
      _mm256_stream_ps(reinterpret_cast<float*>(p + 32), b);
    } else {
      static_assert(type == DType::bf16);
      _mm256_stream_si256(reinterpret_cast<__m256i*>(p), _mm256_insertf128_si256(_mm256_castsi128_si256(to_bf16(a)), to_bf16(b), 1));
    }
  }
  static void end_streams() { _mm_sfence(); }
  static __m128i to_bf16(V v) {
    __m256i bits = _mm256_castps_si256(v);
    __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    __m256i chosen = _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan));
    __m256i high = _mm256_srli_epi32(chosen, 16);
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    return _mm256_castsi256_si128(packed);
  }
  static V swap_neighbours(V v) { return _mm256_permute_ps(v, 0xb1); }
  static V low_half(V v) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(v), 16)); }
  static V high_half(V v) { return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(static_cast<int>(0xffff0000U)))); }
  static void keep(V& v) { __asm__("" : "+x"(v)); }
  /// 8 x 8 words: within 128-bit lanes first, then the lanes themselves.
  static void transpose(V rows[8]) {
    V t[8];
    PLAIT_UNROLL
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    PLAIT_UNROLL
    for (int i = 0; i < 8; i += 4) {
      rows[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
      rows[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
      rows[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      rows[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    PLAIT_UNROLL
    for (int i = 0; i < 4; ++i) {
      V low = rows[i];
      rows[i] = _mm256_permute2f128_ps(low, rows[i + 4], 0x20);
      rows[i + 4] = _mm256_permute2f128_ps(low, rows[i + 4], 0x31);
    }
  }
};
