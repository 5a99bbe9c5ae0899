#pragma once
/// The elementwise table of each tier.

#include <cstdint>
#include <vector>

#include "kernels/elementwise.h"
#include "plait/context.h"

namespace plait::kernels {

/// The tier's table, or nullptr where this build has none. Does not ask whether the CPU can run it.
const ElementwiseKernels* elementwise_kernels(Tier tier);

/// One per instruction set, each in its own file; nullptr where the build's architecture is another.
const ElementwiseKernels* elementwise_reference();
const ElementwiseKernels* elementwise_avx2();
const ElementwiseKernels* elementwise_avx512();
const ElementwiseKernels* elementwise_avx512_bf16();
const ElementwiseKernels* elementwise_neon();

/// The bits of what all functions give on a fixed set of inputs, any NaN as one pattern: equal for all tiers and architectures.
/// The CPU must support the tier.
std::vector<uint32_t> elementwise_fixed_results(const ElementwiseKernels& kernels);

}  // namespace plait::kernels
