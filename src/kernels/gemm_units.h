#pragma once
/// Arithmetic shared by the blocking of m-grouped and k-grouped tiles.

#include "kernels/gemm_kernels.h"

namespace plait::kernels {

inline constexpr int64_t line_bytes = 64;

constexpr int64_t round_up(int64_t x, int64_t multiple) { return num_blocks(x, multiple) * multiple; }

/// How a type's elements become units of 32 bits, on one tier.
struct UnitShape {
  DType type;
  bool pairs;  ///< two bf16 elements per unit

  UnitShape(const GemmPrimitives& primitives, DType dtype) : type(dtype), pairs(dtype == DType::bf16 && primitives.pairs) {}
  /// Elements of whole units: an even number for bf16 on every tier, so that blocks do not split a pair.
  int64_t elements(int64_t units) const { return pairs ? 2 * units : units; }
  int64_t units(int64_t elements) const { return units_of(elements, type, pairs); }
  /// True where units lie in memory as the kernels read them.
  bool in_place() const { return type == DType::f32 || pairs; }
};

inline PrefetchCursor::Block lines_of(const PackSource& source) {
  const int64_t bytes = size_of(source.type);
  return {source.rows[source.first_row] + source.first_element * bytes, source.num_rows, num_blocks(source.num_elements * bytes, line_bytes),
          source.rows.stride_bytes};
}

}  // namespace plait::kernels
