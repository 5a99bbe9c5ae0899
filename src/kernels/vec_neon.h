// 16 float lanes in four vector registers (AArch64). What each operation means is defined by vec_scalar.h.
// Included once, by elementwise_neon.cc, inside its anonymous namespace.

struct Vec {
  float32x4_t v[4];
};
struct Mask {
  uint32x4_t m[4];
};

PLAIT_LANES_INLINE Vec broadcast(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return {{v, v, v, v}};
}
PLAIT_LANES_INLINE float32x4_t flush(float32x4_t a) {
  const uint32x4_t bits = vreinterpretq_u32_f32(a);
  const uint32x4_t not_tiny = vtstq_u32(bits, vdupq_n_u32(0x7f800000U));
  return vreinterpretq_f32_u32(vandq_u32(bits, vorrq_u32(not_tiny, vdupq_n_u32(0x80000000U))));
}
PLAIT_LANES_INLINE Vec flush(Vec a) { return {{flush(a.v[0]), flush(a.v[1]), flush(a.v[2]), flush(a.v[3])}}; }
PLAIT_LANES_INLINE Vec operator-(Vec a) { return {{vnegq_f32(a.v[0]), vnegq_f32(a.v[1]), vnegq_f32(a.v[2]), vnegq_f32(a.v[3])}}; }
PLAIT_LANES_INLINE Vec operator+(Vec a, Vec b) {
  return {{vaddq_f32(a.v[0], b.v[0]), vaddq_f32(a.v[1], b.v[1]), vaddq_f32(a.v[2], b.v[2]), vaddq_f32(a.v[3], b.v[3])}};
}
PLAIT_LANES_INLINE Vec operator-(Vec a, Vec b) {
  return {{vsubq_f32(a.v[0], b.v[0]), vsubq_f32(a.v[1], b.v[1]), vsubq_f32(a.v[2], b.v[2]), vsubq_f32(a.v[3], b.v[3])}};
}
PLAIT_LANES_INLINE Vec operator*(Vec a, Vec b) {
  return {{vmulq_f32(a.v[0], b.v[0]), vmulq_f32(a.v[1], b.v[1]), vmulq_f32(a.v[2], b.v[2]), vmulq_f32(a.v[3], b.v[3])}};
}
PLAIT_LANES_INLINE Vec operator/(Vec a, Vec b) {
  return {{vdivq_f32(a.v[0], b.v[0]), vdivq_f32(a.v[1], b.v[1]), vdivq_f32(a.v[2], b.v[2]), vdivq_f32(a.v[3], b.v[3])}};
}
PLAIT_LANES_INLINE Vec fma(Vec a, Vec b, Vec c) {
  return {
      {vfmaq_f32(c.v[0], a.v[0], b.v[0]), vfmaq_f32(c.v[1], a.v[1], b.v[1]), vfmaq_f32(c.v[2], a.v[2], b.v[2]), vfmaq_f32(c.v[3], a.v[3], b.v[3])}};
}
PLAIT_LANES_INLINE Mask operator<(Vec a, Vec b) {
  return {{vcltq_f32(a.v[0], b.v[0]), vcltq_f32(a.v[1], b.v[1]), vcltq_f32(a.v[2], b.v[2]), vcltq_f32(a.v[3], b.v[3])}};
}
PLAIT_LANES_INLINE Vec select(Mask m, Vec yes, Vec no) {
  return {{vbslq_f32(m.m[0], yes.v[0], no.v[0]), vbslq_f32(m.m[1], yes.v[1], no.v[1]), vbslq_f32(m.m[2], yes.v[2], no.v[2]),
           vbslq_f32(m.m[3], yes.v[3], no.v[3])}};
}
// Not vmaxq/vminq, whose NaN and zero rules differ.
PLAIT_LANES_INLINE Vec max_of(Vec a, Vec b) { return select(b < a, a, b); }
PLAIT_LANES_INLINE Vec min_of(Vec a, Vec b) { return select(a < b, a, b); }

PLAIT_LANES_INLINE float32x4_t power_of_2(int32x4_t n) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23)); }
PLAIT_LANES_INLINE float32x4_t times_pow2(float32x4_t a, float32x4_t n) {
  const int32x4_t whole = vcvtq_s32_f32(n);
  const int32x4_t half = vshrq_n_s32(whole, 1);
  return vmulq_f32(vmulq_f32(a, power_of_2(half)), power_of_2(vsubq_s32(whole, half)));
}
PLAIT_LANES_INLINE Vec times_pow2(Vec a, Vec n) {
  return {{times_pow2(a.v[0], n.v[0]), times_pow2(a.v[1], n.v[1]), times_pow2(a.v[2], n.v[2]), times_pow2(a.v[3], n.v[3])}};
}
PLAIT_LANES_INLINE float32x4_t split_exponent(float32x4_t x, float32x4_t* mantissa) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x);
  const int32x4_t e = vshrq_n_s32(vreinterpretq_s32_u32(vsubq_u32(bits, vdupq_n_u32(sqrt_half_bits))), 23);
  *mantissa = vreinterpretq_f32_u32(vsubq_u32(bits, vreinterpretq_u32_s32(vshlq_n_s32(e, 23))));
  return vcvtq_f32_s32(e);
}
PLAIT_LANES_INLINE Vec split_exponent(Vec x, Vec* mantissa) {
  return {{split_exponent(x.v[0], &mantissa->v[0]), split_exponent(x.v[1], &mantissa->v[1]), split_exponent(x.v[2], &mantissa->v[2]),
           split_exponent(x.v[3], &mantissa->v[3])}};
}

PLAIT_LANES_INLINE float add_scalars(float a, float b) { return a + b; }
PLAIT_LANES_INLINE float sum_lanes(Vec a) {
  const float32x4_t four = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
PLAIT_LANES_INLINE float max_lanes(Vec a) {
  float lanes[16];
  for (int i = 0; i < 4; ++i) vst1q_f32(lanes + 4 * i, a.v[i]);
  for (int half = 8; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] = lanes[l + half] < lanes[l] ? lanes[l] : lanes[l + half];
  }
  return lanes[0];
}

PLAIT_LANES_INLINE void deinterleave(Vec* a, Vec* b) {
  const Vec first = *a, second = *b;
  for (int i = 0; i < 2; ++i) {
    a->v[i] = vuzp1q_f32(first.v[2 * i], first.v[2 * i + 1]);
    b->v[i] = vuzp2q_f32(first.v[2 * i], first.v[2 * i + 1]);
    a->v[i + 2] = vuzp1q_f32(second.v[2 * i], second.v[2 * i + 1]);
    b->v[i + 2] = vuzp2q_f32(second.v[2 * i], second.v[2 * i + 1]);
  }
}
PLAIT_LANES_INLINE void interleave(Vec* a, Vec* b) {
  const Vec even = *a, odd = *b;
  for (int i = 0; i < 2; ++i) {
    a->v[2 * i] = vzip1q_f32(even.v[i], odd.v[i]);
    a->v[2 * i + 1] = vzip2q_f32(even.v[i], odd.v[i]);
    b->v[2 * i] = vzip1q_f32(even.v[i + 2], odd.v[i + 2]);
    b->v[2 * i + 1] = vzip2q_f32(even.v[i + 2], odd.v[i + 2]);
  }
}

PLAIT_LANES_INLINE Vec load_f32(const std::byte* p) {
  const auto* x = reinterpret_cast<const float*>(p);
  return {{vld1q_f32(x), vld1q_f32(x + 4), vld1q_f32(x + 8), vld1q_f32(x + 12)}};
}
PLAIT_LANES_INLINE void store_f32(std::byte* p, Vec a) {
  auto* x = reinterpret_cast<float*>(p);
  for (int i = 0; i < 4; ++i) vst1q_f32(x + 4 * i, a.v[i]);
}
PLAIT_LANES_INLINE Vec load_bf16(const std::byte* p) {
  const auto* x = reinterpret_cast<const uint16_t*>(p);
  Vec y;
  for (int i = 0; i < 4; ++i) y.v[i] = vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(x + 4 * i)), 16));
  return y;
}
PLAIT_LANES_INLINE uint16x4_t bf16_bits(float32x4_t a) {
  const uint32x4_t bits = vreinterpretq_u32_f32(a);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(a, a), rounded, quiet), 16);
}
PLAIT_LANES_INLINE void store_bf16(std::byte* p, Vec a) {
  auto* x = reinterpret_cast<uint16_t*>(p);
  for (int i = 0; i < 4; ++i) vst1_u16(x + 4 * i, bf16_bits(a.v[i]));
}
PLAIT_LANES_INLINE Vec load_f16(const std::byte* p) {
  const auto* x = reinterpret_cast<const uint16_t*>(p);
  Vec y;
  for (int i = 0; i < 4; ++i) y.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x + 4 * i)));
  return y;
}
PLAIT_LANES_INLINE void store_f16(std::byte* p, Vec a) {
  auto* x = reinterpret_cast<uint16_t*>(p);
  for (int i = 0; i < 4; ++i) vst1_u16(x + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.v[i])));
}
