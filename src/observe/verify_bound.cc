#include "observe/verify_bound.h"

#include <algorithm>
#include <numbers>

namespace plait::verify {
namespace {

constexpr double unit = 0x1p-24;               // u of float32
constexpr double flushed = 1e-30;              // far above what flushed denormals can add up to here
constexpr double elementwise_error = 0x1p-19;  // relative, of the float32 steps of an activation: exp, division, products

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

/// The activation and its derivatives in float64.
struct Scalar {
  double act, dgate, dup;
};

Scalar swiglu(double g, double u) {
  double s = logistic(g);
  return {g * s * u, u * s * (1 + g * (1 - s)), g * s};
}

Scalar clamped(const Activation& a, double gate, double up) {
  auto limit = static_cast<double>(a.limit), alpha = static_cast<double>(a.alpha);
  double g = std::min(gate, limit), u = std::clamp(up, -limit, limit), s = logistic(alpha * g);
  double dgate = gate <= limit ? (u + 1) * (s + alpha * g * s * (1 - s)) : 0, dup = std::fabs(up) <= limit ? g * s : 0;
  return {(u + 1) * g * s, dgate, dup};
}

Scalar geglu(double g, double u) {
  const double c = std::sqrt(2 / std::numbers::pi);
  double t = std::tanh(c * (g + 0.044715 * g * g * g)), gelu = 0.5 * g * (1 + t);
  return {gelu * u, u * (0.5 * (1 + t) + 0.5 * g * (1 - t * t) * c * (1 + 3 * 0.044715 * g * g)), gelu};
}

Scalar evaluate(const Activation& a, double gate, double up) {
  switch (a.kind) {
    case ActivationKind::swiglu:
      return swiglu(gate, up);
    case ActivationKind::swiglu_clamped:
      return clamped(a, gate, up);
    case ActivationKind::geglu_tanh:
      return geglu(gate, up);
    case ActivationKind::relu2:
      break;
  }
  double positive = std::max(gate, 0.0);
  return {positive * positive, 2 * positive, 0};
}

/// How far the value may move when gate and up move by their errors: the largest step to a corner, half as much again for the curvature
/// between, and the float32 steps of computing it.
struct Spread {
  Scalar center, error;
};
Spread spread(const Activation& a, const Bounded& gate, const Bounded& up) {
  Spread s{evaluate(a, gate.value, up.value), {0, 0, 0}};
  for (double sign_gate : {-1.0, 1.0}) {
    for (double sign_up : {-1.0, 1.0}) {
      Scalar corner = evaluate(a, gate.value + sign_gate * gate.error, up.value + sign_up * up.error);
      s.error.act = std::max(s.error.act, 1.5 * std::fabs(corner.act - s.center.act));
      s.error.dgate = std::max(s.error.dgate, 1.5 * std::fabs(corner.dgate - s.center.dgate));
      s.error.dup = std::max(s.error.dup, 1.5 * std::fabs(corner.dup - s.center.dup));
    }
  }
  // Terms of the derivatives may cancel, so their float32 error is measured against the terms.
  double scale = (gate.largest() + 1) * (up.largest() + 1);
  s.error.act += elementwise_error * std::fabs(s.center.act) + flushed;
  s.error.dgate += elementwise_error * scale + flushed;
  s.error.dup += elementwise_error * std::fabs(s.center.dup) + flushed;
  return s;
}

}  // namespace

double gamma(int64_t n) { return static_cast<double>(n) * unit / (1 - static_cast<double>(n) * unit); }

Bounded rounded(const Bounded& x, DType dtype) {
  double relative = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : unit;
  double smallest = dtype == DType::f16 ? 0x1p-25 : flushed;  // half the spacing of f16 subnormals
  return {x.value, x.error + relative * x.largest() + smallest};
}

Bounded product(const Bounded& a, const Bounded& b) {
  double error = std::fabs(a.value) * b.error + std::fabs(b.value) * a.error + a.error * b.error;
  return rounded({a.value * b.value, error}, DType::f32);
}

Bounded Chain::result() const { return {value_, error_ + gamma(length_) * magnitude_ + flushed}; }

ColumnPair columns_of(const Activation& activation, int64_t i, int64_t intermediate) {
  if (!activation.gated()) return {i, i};
  return activation.interleaved ? ColumnPair{2 * i, 2 * i + 1} : ColumnPair{i, intermediate + i};
}

Bounded activation_value(const Activation& activation, const Bounded& gate, const Bounded& up) {
  Spread s = spread(activation, gate, up);
  return {s.center.act, s.error.act};
}

ActivationGradients activation_gradient(const Activation& activation, const Bounded& gate, const Bounded& up, const Bounded& da) {
  Spread s = spread(activation, gate, up);
  return {product({s.center.dgate, s.error.dgate}, da), product({s.center.dup, s.error.dup}, da)};
}

Bounded sigmoid(const Bounded& x) {
  double value = logistic(x.value);
  return {value, 0.25 * x.error + elementwise_error * value};
}

}  // namespace plait::verify
