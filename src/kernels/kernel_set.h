#pragma once
/// A tier's kernels: one constant table per instruction set, chosen at run time.

#include <string_view>

#include "plait/context.h"

namespace plait::kernels {

struct GemmKernels;         // gemm_kernels.h
struct ElementwiseKernels;  // elementwise.h

struct KernelSet {
  Tier tier;
  const GemmKernels* gemm;
  const ElementwiseKernels* elementwise;
};

/// The table of a tier, or nullptr where this build has none. Does not ask whether the CPU can run it.
const KernelSet* kernel_set(Tier tier);

/// The tier named `text`, if it can be used here; errors begin with `origin` ("PLAIT_KERNEL=avx512") and say why it cannot.
Result<Tier> usable_tier(std::string_view text, std::string_view origin);

/// Runs the tier's fixed vector set against the contract's scalar definition; false where it differs. The CPU must support the tier.
bool gemm_self_check(const GemmKernels& kernels);
bool elementwise_self_check(const ElementwiseKernels& kernels);

}  // namespace plait::kernels
