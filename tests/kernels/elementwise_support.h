#pragma once
/// What the elementwise tests share: the tiers of this machine, rows that end at a page without access, and values of every kind.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/elementwise.h"
#include "plait/tensor.h"

namespace plait::test {

struct NamedElementwise {
  std::string name;
  const kernels::ElementwiseKernels* kernels;
};
/// The tables that this CPU can run, the reference first.
std::vector<NamedElementwise> elementwise_tiers();
const kernels::ElementwiseKernels& reference_elementwise();

inline constexpr DType floating_types[] = {DType::f32, DType::bf16, DType::f16};

/// Bytes right before a page without access: reads and writes beyond them end the program. The bytes before them hold a pattern that
/// intact() looks for.
class GuardedRow {
 public:
  explicit GuardedRow(int64_t max_bytes);
  ~GuardedRow();
  GuardedRow(const GuardedRow&) = delete;
  GuardedRow& operator=(const GuardedRow&) = delete;

  /// From now on the row has that many bytes; everything is filled with the pattern again.
  void resize(int64_t bytes);
  std::byte* data() const { return end_ - bytes_; }
  float* floats() const { return reinterpret_cast<float*>(data()); }
  bool intact() const;

 private:
  std::byte* mapping_ = nullptr;
  int64_t mapping_bytes_ = 0;
  std::byte* end_ = nullptr;
  int64_t bytes_ = 0;
};

/// n values: a third ordinary ones in [-8, 8), a third with any exponent (`limit`: exponents in [-limit, limit]), the rest special ones:
/// zeros, denormals, infinities, NaN, the ends of exp's range, ties of the 16-bit types.
std::vector<float> any_values(uint64_t seed, int64_t n, int limit = 126);
/// The values as a row of `type` (rounded by the test's own conversion, denormals kept).
std::vector<std::byte> row_of(DType type, const std::vector<float>& values);

/// A float's bits, any NaN as one pattern.
uint32_t bits_of(float x);
/// Where two rows of `type` differ (any NaN equals any NaN), or "".
std::string row_difference(DType type, const std::byte* a, const std::byte* b, int64_t n);

/// |got - exact| in units in the last place of the float32 nearest to `exact`.
double ulps(float got, double exact);

}  // namespace plait::test
