// 16 float lanes without an instruction set: the definition that the other tiers must equal to the bit. Every operation takes denormals
// as zero and flushes its result by itself, after rounding as x86 does, so that the caller's floating-point mode does not matter.
// Included once, by elementwise_reference.cc, inside its anonymous namespace.

struct Vec {
  float lane[16];
};
struct Mask {
  bool lane[16];
};

[[gnu::noinline]] inline float flushed(float x) {
  auto bits = std::bit_cast<uint32_t>(x);
  return (bits & 0x7f800000U) != 0 ? x : std::bit_cast<float>(bits & 0x80000000U);
}
/// Rounds a value that double holds exactly (or with 29 bits to spare), flushing what is below 2^-126 after rounding to 24 bits.
inline float narrowed(double x) {
  double magnitude = std::fabs(x);
  if (magnitude >= 0x1p-126 || std::isnan(x)) return static_cast<float>(x);
  return std::copysign(magnitude >= 0x1p-126 - 0x1p-151 ? 0x1p-126F : 0.0F, std::signbit(x) ? -1.0F : 1.0F);
}
inline float multiplied_added(float a, float b, float c) {
  float exact = std::fma(a, b, c);
  if (std::fabs(exact) > 0x1p-126F || std::isnan(exact)) return exact;
  return narrowed(static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(c));
}

template <typename Fn>
inline Vec map(Fn fn) {
  Vec y;
  for (int l = 0; l < 16; ++l) y.lane[l] = fn(l);
  return y;
}

[[gnu::noinline]] inline Vec broadcast(float x) {
  return map([&](int) { return x; });
}
[[gnu::noinline]] inline Vec flush(Vec a) {
  return map([&](int l) { return flushed(a.lane[l]); });
}
[[gnu::noinline]] inline Vec operator-(Vec a) {
  return map([&](int l) { return std::bit_cast<float>(std::bit_cast<uint32_t>(a.lane[l]) ^ 0x80000000U); });
}
[[gnu::noinline]] inline Vec operator+(Vec a, Vec b) {
  return map([&](int l) { return flushed(flushed(a.lane[l]) + flushed(b.lane[l])); });
}
[[gnu::noinline]] inline Vec operator-(Vec a, Vec b) { return a + -b; }
[[gnu::noinline]] inline Vec operator*(Vec a, Vec b) {
  return map([&](int l) { return narrowed(static_cast<double>(flushed(a.lane[l])) * static_cast<double>(flushed(b.lane[l]))); });
}
[[gnu::noinline]] inline Vec operator/(Vec a, Vec b) {
  return map([&](int l) { return narrowed(static_cast<double>(flushed(a.lane[l])) / static_cast<double>(flushed(b.lane[l]))); });
}
[[gnu::noinline]] inline Vec fma(Vec a, Vec b, Vec c) {
  return map([&](int l) { return multiplied_added(flushed(a.lane[l]), flushed(b.lane[l]), flushed(c.lane[l])); });
}
[[gnu::noinline]] inline Mask operator<(Vec a, Vec b) {
  Mask m;
  for (int l = 0; l < 16; ++l) m.lane[l] = flushed(a.lane[l]) < flushed(b.lane[l]);
  return m;
}
[[gnu::noinline]] inline Vec select(Mask m, Vec yes, Vec no) {
  return map([&](int l) { return m.lane[l] ? yes.lane[l] : no.lane[l]; });
}
/// The second where either is NaN or both are zeros.
[[gnu::noinline]] inline Vec max_of(Vec a, Vec b) { return select(b < a, a, b); }
[[gnu::noinline]] inline Vec min_of(Vec a, Vec b) { return select(a < b, a, b); }
/// a * 2^n for whole n in [-252, 252]; NaN where either is.
[[gnu::noinline]] inline Vec times_pow2(Vec a, Vec n) {
  return map([&](int l) {
    if (std::isnan(n.lane[l])) return n.lane[l];
    return narrowed(std::ldexp(static_cast<double>(a.lane[l]), static_cast<int>(n.lane[l])));
  });
}
/// x > 0 as mantissa * 2^exponent with the mantissa in [sqrt(1/2), sqrt(2)); returns the exponent. Other x: some numbers.
[[gnu::noinline]] inline Vec split_exponent(Vec x, Vec* mantissa) {
  Vec exponent;
  for (int l = 0; l < 16; ++l) {
    auto bits = std::bit_cast<int32_t>(x.lane[l]);
    int32_t e = static_cast<int32_t>(static_cast<uint32_t>(bits) - sqrt_half_bits) >> 23;
    mantissa->lane[l] = std::bit_cast<float>(static_cast<uint32_t>(bits) - (static_cast<uint32_t>(e) << 23));
    exponent.lane[l] = static_cast<float>(e);
  }
  return exponent;
}

inline float add_scalars(float a, float b) { return flushed(a + b); }
[[gnu::noinline]] inline float sum_lanes(Vec a) {
  for (int half = 8; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) a.lane[l] = flushed(a.lane[l] + a.lane[l + half]);
  }
  return a.lane[0];
}
[[gnu::noinline]] inline float max_lanes(Vec a) {
  for (int half = 8; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) a.lane[l] = a.lane[l + half] < a.lane[l] ? a.lane[l] : a.lane[l + half];
  }
  return a.lane[0];
}

/// a, b hold 32 elements in order; afterwards a holds the even ones, b the odd ones. interleave() undoes that.
[[gnu::noinline]] inline void deinterleave(Vec* a, Vec* b) {
  Vec even = map([&](int l) { return l < 8 ? a->lane[2 * l] : b->lane[2 * l - 16]; });
  *b = map([&](int l) { return l < 8 ? a->lane[2 * l + 1] : b->lane[2 * l - 15]; });
  *a = even;
}
[[gnu::noinline]] inline void interleave(Vec* a, Vec* b) {
  Vec low = map([&](int l) { return l % 2 == 0 ? a->lane[l / 2] : b->lane[l / 2]; });
  *b = map([&](int l) { return l % 2 == 0 ? a->lane[8 + l / 2] : b->lane[8 + l / 2]; });
  *a = low;
}

[[gnu::noinline]] inline Vec load_f32(const std::byte* p) {
  Vec y;
  std::memcpy(y.lane, p, sizeof y.lane);
  return y;
}
[[gnu::noinline]] inline void store_f32(std::byte* p, Vec a) { std::memcpy(p, a.lane, sizeof a.lane); }

struct Halves {
  uint16_t lane[16];
};
inline Halves load_halves(const std::byte* p) {
  Halves h;
  std::memcpy(h.lane, p, sizeof h.lane);
  return h;
}

[[gnu::noinline]] inline Vec load_bf16(const std::byte* p) {
  Halves h = load_halves(p);
  return map([&](int l) { return std::bit_cast<float>(static_cast<uint32_t>(h.lane[l]) << 16); });
}
[[gnu::noinline]] inline void store_bf16(std::byte* p, Vec a) {
  Halves h;
  for (int l = 0; l < 16; ++l) {
    auto bits = std::bit_cast<uint32_t>(a.lane[l]);
    h.lane[l] = static_cast<uint16_t>(std::isnan(a.lane[l]) ? bits >> 16 | 0x40U : (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
  }
  std::memcpy(p, h.lane, sizeof h.lane);
}

inline float from_f16(uint16_t half) {
  uint32_t sign = (half & 0x8000U) << 16, exponent = half >> 10 & 31U, mantissa = half & 1023U;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | mantissa << 13 | (mantissa != 0 ? 0x400000U : 0U));
  if (exponent == 0) return std::copysign(static_cast<float>(mantissa) * 0x1p-24F, sign != 0 ? -1.0F : 1.0F);
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}
inline uint16_t to_f16(float x) {
  auto bits = std::bit_cast<uint32_t>(x);
  uint32_t sign = bits >> 16 & 0x8000U, magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<uint16_t>(sign | 0x7e00U | (magnitude >> 13 & 0x3ffU));
  if (magnitude >= 0x477ff000U) return static_cast<uint16_t>(sign | 0x7c00U);  // 65520 and above round to infinity
  if (magnitude < 0x38800000U) {                                               // below 2^-14: a whole number of 2^-24
    float aligned = std::bit_cast<float>(magnitude) + 0.5F;                    // an ulp of [0.5, 1) is 2^-24: the sum rounds to it
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000U));
  }
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000U + 0xfffU + (magnitude >> 13 & 1U)) >> 13));
}
[[gnu::noinline]] inline Vec load_f16(const std::byte* p) {
  Halves h = load_halves(p);
  return map([&](int l) { return from_f16(h.lane[l]); });
}
[[gnu::noinline]] inline void store_f16(std::byte* p, Vec a) {
  Halves h;
  for (int l = 0; l < 16; ++l) h.lane[l] = to_f16(a.lane[l]);
  std::memcpy(p, h.lane, sizeof h.lane);
}
