// The shared bodies over vec_neon.h. NEON is part of the AArch64 baseline: no target region.

#include "kernels/elementwise_prelude.h"
#include "kernels/gemm_target.h"

#if defined(__aarch64__)
namespace plait::kernels {
namespace {

// The second uses the first.
// clang-format off
#include "kernels/vec_neon.h"
#include "kernels/elementwise_table_body.h"
// clang-format on

}  // namespace
}  // namespace plait::kernels

const plait::kernels::ElementwiseKernels* plait::kernels::elementwise_neon() { return &table; }
#else
const plait::kernels::ElementwiseKernels* plait::kernels::elementwise_neon() { return nullptr; }
#endif
