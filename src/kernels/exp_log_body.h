// exp, log and sigmoid over the vector type of the including file. Included inside its anonymous namespace, after vec_*.h.
// Largest errors over all float32 inputs: see tests/kernels/exp_log_test.cc.

/// exp(x): 0 where the result would be denormal, infinity on overflow, NaN for NaN.
PLAIT_LANES_INLINE Vec exp(Vec x) {
  x = min_of(broadcast(exp_high), max_of(broadcast(exp_low), x));  // in this order of operands a NaN stays
  const Vec rounder = broadcast(0x1.8p23F);                        // adding it rounds to a whole number, on every instruction set alike
  Vec n = fma(x, broadcast(log2_e), rounder) - rounder;
  Vec r = fma(n, broadcast(-ln2_high), x);
  r = fma(n, broadcast(-ln2_low), r);
  Vec p = broadcast(exp_coefficients[4]);
  p = fma(p, r, broadcast(exp_coefficients[3]));
  p = fma(p, r, broadcast(exp_coefficients[2]));
  p = fma(p, r, broadcast(exp_coefficients[1]));
  p = fma(p, r, broadcast(exp_coefficients[0]));
  p = fma(p, r * r, r) + broadcast(1.0F);
  return times_pow2(p, n);
}

/// log(x): -inf for zeros and denormals of either sign, NaN below, inf for inf, NaN for NaN.
PLAIT_LANES_INLINE Vec log(Vec x) {
  Vec mantissa;
  Vec e = split_exponent(x, &mantissa);
  Vec f = mantissa - broadcast(1.0F);
  Vec p = broadcast(log_coefficients[7]);
  p = fma(p, f, broadcast(log_coefficients[6]));
  p = fma(p, f, broadcast(log_coefficients[5]));
  p = fma(p, f, broadcast(log_coefficients[4]));
  p = fma(p, f, broadcast(log_coefficients[3]));
  p = fma(p, f, broadcast(log_coefficients[2]));
  p = fma(p, f, broadcast(log_coefficients[1]));
  p = fma(p, f, broadcast(log_coefficients[0]));
  Vec square = f * f;
  Vec tail = fma(p * f, square, e * broadcast(ln2_low));
  tail = fma(broadcast(-0.5F), square, tail);
  Vec y = fma(e, broadcast(ln2_high), f + tail);

  const Vec infinity = broadcast(std::numeric_limits<float>::infinity());
  y = select(x < broadcast(0x1p-126F), -infinity, y);
  y = select(x < broadcast(0.0F), broadcast(std::numeric_limits<float>::quiet_NaN()), y);
  return select(x < infinity, y, x);
}

/// 1 / (1 + exp(-x)).
PLAIT_LANES_INLINE Vec sigmoid(Vec x) {
  const Vec one = broadcast(1.0F);
  return one / (one + exp(-x));
}
