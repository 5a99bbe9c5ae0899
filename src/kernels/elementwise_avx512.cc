// The shared bodies over vec_avx512.h. Only the target region uses the instruction set; the rest is baseline code.

#include "kernels/elementwise_prelude.h"
#include "kernels/gemm_target.h"

#if defined(__x86_64__)
PLAIT_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
namespace plait::kernels {
namespace {

// The second uses the first.
// clang-format off
#include "kernels/vec_avx512.h"
#include "kernels/elementwise_table_body.h"
// clang-format on

}  // namespace
}  // namespace plait::kernels
PLAIT_TARGET_END

const plait::kernels::ElementwiseKernels* plait::kernels::elementwise_avx512() { return &table; }
#else
const plait::kernels::ElementwiseKernels* plait::kernels::elementwise_avx512() { return nullptr; }
#endif
