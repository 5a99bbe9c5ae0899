#pragma once
/// float64 values with a bound on how far a computation under the numerics contract may be from them. docs/numerics.md section 9.

#include <cmath>
#include <cstdint>
#include <vector>

#include "plait/activation.h"
#include "plait/tensor.h"

namespace plait::verify {

/// A value, and how far the computed one may lie from it.
struct Bounded {
  double value = 0, error = 0;
  double largest() const { return std::fabs(value) + error; }
};
using BoundedRow = std::vector<Bounded>;

/// gamma(n) = n u / (1 - n u), u = 2^-24: the relative error of a chain of n float32 steps.
double gamma(int64_t n);
/// The value stored as `dtype`: half an ulp more.
Bounded rounded(const Bounded& x, DType dtype);
/// A rounded float32 product.
Bounded product(const Bounded& a, const Bounded& b);

/// Sum of products, a float32 chain: the terms' own errors, and gamma of the sum of magnitudes.
class Chain {
 public:
  void add(const Bounded& a, double b) {
    value_ += a.value * b;
    error_ += a.error * std::fabs(b);
    magnitude_ += a.largest() * std::fabs(b);
    ++length_;
  }
  void add(const Bounded& a, const Bounded& b) {
    value_ += a.value * b.value;
    error_ += std::fabs(a.value) * b.error + std::fabs(b.value) * a.error + a.error * b.error;
    magnitude_ += a.largest() * b.largest();
    ++length_;
  }
  /// A bias: one more step.
  void add(double term) { add({term, 0}, 1.0); }
  Bounded result() const;

 private:
  double value_ = 0, error_ = 0, magnitude_ = 0;
  int64_t length_ = 0;
};

/// Column c of h and its partner for activation column i: gate and up, or one column where the activation is not gated.
struct ColumnPair {
  int64_t gate, up;
};
ColumnPair columns_of(const Activation& activation, int64_t i, int64_t intermediate);

/// act = activation(gate, up), before rounding.
Bounded activation_value(const Activation& activation, const Bounded& gate, const Bounded& up);
/// Gradients of gate and up for `da`, before rounding.
struct ActivationGradients {
  Bounded gate, up;
};
ActivationGradients activation_gradient(const Activation& activation, const Bounded& gate, const Bounded& up, const Bounded& da);

Bounded sigmoid(const Bounded& x);

}  // namespace plait::verify
