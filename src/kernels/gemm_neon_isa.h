// The 128-bit vector type of AArch64. Included once, inside the anonymous namespace of gemm_neon.cc.

struct Isa {
  using V = float32x4_t;
  static constexpr int width = 4;
  static constexpr int panel_vectors = 4;
  static constexpr int max_rows = 6;  // 24 accumulators, 4 vectors of b, 1 of a
  static constexpr bool has_pairs = false;

  static V zero() { return vdupq_n_f32(0); }
  static V load(const float* p) { return vld1q_f32(p); }
  static void store(float* p, V v) { vst1q_f32(p, v); }
  static V add(V a, V b) { return vaddq_f32(a, b); }
  static V fma(V acc, V a, V b) { return vfmaq_f32(acc, a, b); }
  static V broadcast(const std::byte* p) {
    float unit;
    __builtin_memcpy(&unit, p, sizeof unit);
    return vdupq_n_f32(unit);
  }

  template <DType type>
  static V load_as(const std::byte* p) {
    if constexpr (type == DType::f32) {
      V v;
      __builtin_memcpy(&v, p, sizeof v);
      return v;
    }
    uint16x4_t half;
    __builtin_memcpy(&half, p, sizeof half);
    if constexpr (type == DType::f16) return vcvt_f32_f16(vreinterpret_f16_u16(half));
    return vreinterpretq_f32_u32(vshll_n_u16(half, 16));
  }
  template <DType type>
  static void store_as(std::byte* p, V v) {
    if constexpr (type == DType::f32) {
      __builtin_memcpy(p, &v, sizeof v);
    } else {
      uint16x4_t half = type == DType::f16 ? vreinterpret_u16_f16(vcvt_f16_f32(v)) : to_bf16(v);
      __builtin_memcpy(p, &half, sizeof half);
    }
  }
  static constexpr int stream_bytes = 0;
  template <DType type>
  static void stream_as(std::byte* p, V a, V b) {
    store_as<type>(p, a);
    store_as<type>(p + width * size_of(type), b);
  }
  static void end_streams() {}
  static uint16x4_t to_bf16(V v) {
    uint32x4_t bits = vreinterpretq_u32_f32(v);
    uint32x4_t even = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(even, vdupq_n_u32(0x7fff)));
    uint32x4_t number = vceqq_f32(v, v);
    return vshrn_n_u32(vbslq_u32(number, rounded, vorrq_u32(bits, vdupq_n_u32(0x400000))), 16);
  }
  static V swap_neighbours(V v) { return vrev64q_f32(v); }
  static V low_half(V v) { return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(v), 16)); }
  static V high_half(V v) { return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(v), vdupq_n_u32(0xffff0000U))); }
  static void keep(V& v) { __asm__("" : "+w"(v)); }
  static void transpose(V rows[4]) {
    float32x4x2_t low = vtrnq_f32(rows[0], rows[1]);
    float32x4x2_t high = vtrnq_f32(rows[2], rows[3]);
    rows[0] = vcombine_f32(vget_low_f32(low.val[0]), vget_low_f32(high.val[0]));
    rows[1] = vcombine_f32(vget_low_f32(low.val[1]), vget_low_f32(high.val[1]));
    rows[2] = vcombine_f32(vget_high_f32(low.val[0]), vget_high_f32(high.val[0]));
    rows[3] = vcombine_f32(vget_high_f32(low.val[1]), vget_high_f32(high.val[1]));
  }
};
