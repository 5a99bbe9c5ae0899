#pragma once
/// The scalar definition of the contract's matrix products (docs/numerics.md sections 1-3): plain loops, one chain per output element.
/// Denormals are flushed explicitly, so that the floating-point mode of the caller does not matter.

#include "kernels/grouped_gemm.h"

namespace plait::kernels {

/// fma(a, b, acc) rounded once to nearest even; denormal operands count as zero, a result below 2^-126 after rounding is signed zero.
float chain_step(float a, float b, float acc);
/// Element i of a row as float32. f16 subnormals are ordinary values; f32 and bf16 denormals become signed zero.
float load_element(DType type, const std::byte* row, int64_t i);
/// Rounds to nearest even into element i of a row; f32 and bf16 denormals become signed zero, NaN is quietened.
void store_element(DType type, std::byte* row, int64_t i, float value);

void reference_m_tile(const MGroupedGemm& problem, const Tile& tile);
void reference_k_tile(const KGroupedGemm& problem, const Tile& tile);

}  // namespace plait::kernels
