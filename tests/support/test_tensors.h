#pragma once
/// Tensors for tests: seeded values, exact integers, conversion to double, comparison of bits.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "plait/tensor.h"

namespace plait::test {

/// A contiguous tensor in memory of its own (not an arena), filled with NaN so that an unwritten element shows.
Tensor make_tensor(DType dtype, std::initializer_list<int64_t> shape);

/// A small generator with the same values on every platform (splitmix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  int64_t below(int64_t bound);  ///< uniform in [0, bound)
  float uniform(float low, float high);

 private:
  uint64_t state_;
};

/// Element i (flat, row-major) of a floating tensor as double, and back (rounded to nearest even). Any strides.
double get(const ConstTensorView& t, int64_t i);
void set(const TensorView& t, int64_t i, double value);

Tensor random_tensor(DType dtype, std::initializer_list<int64_t> shape, uint64_t seed, float low = -1.0F, float high = 1.0F);
/// Whole numbers in [low, high]: sums of products of small ones are exact, so that results compare with ==.
Tensor integer_tensor(DType dtype, std::initializer_list<int64_t> shape, uint64_t seed, int low = -3, int high = 3);
Tensor tensor_of(DType dtype, std::initializer_list<int64_t> shape, const std::vector<double>& values);
std::vector<double> to_vector(const ConstTensorView& t);

/// Equal shapes and bits; any NaN equals any NaN. On difference returns where and what, else "".
std::string bit_difference(const ConstTensorView& a, const ConstTensorView& b);

}  // namespace plait::test

/// EXPECT_BITS_EQ(a, b): fails with the first differing element.
#define EXPECT_BITS_EQ(a, b) EXPECT_EQ(::plait::test::bit_difference((a), (b)), "")
