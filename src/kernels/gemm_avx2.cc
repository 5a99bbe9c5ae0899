// Built with baseline flags; only the region below uses the instruction set, after the CPU has been asked (tier.cc).

#include "kernels/gemm_kernels.h"

#if defined(__x86_64__)
#include "kernels/gemm_target.h"

namespace plait::kernels {
PLAIT_TARGET_BEGIN("avx2,fma,f16c")
namespace {

#include "kernels/gemm_avx2_isa.h"

#include "kernels/gemm_pack_body.h"

#include "kernels/gemm_body.h"

}  // namespace
PLAIT_TARGET_END
namespace {
constexpr GemmPrimitives primitives{panel_width, chunk_units, max_rows, Isa::has_pairs, Isa::stream_bytes, pack, convert_rows, multiply};
}  // namespace

const GemmPrimitives* gemm_avx2() { return &primitives; }

}  // namespace plait::kernels
#else
namespace plait::kernels {
const GemmPrimitives* gemm_avx2() { return nullptr; }
}  // namespace plait::kernels
#endif
