// Built with baseline flags; only the region below uses the instruction set, after the CPU has been asked (tier.cc).

#include "kernels/gemm_kernels.h"

#if defined(__x86_64__)
#include "kernels/gemm_target.h"
#define PLAIT_PAIRS true

namespace plait::kernels {
PLAIT_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")
namespace {

#include "kernels/gemm_avx512_isa.h"

#include "kernels/gemm_pack_body.h"

#include "kernels/gemm_body.h"

}  // namespace
PLAIT_TARGET_END
namespace {
constexpr GemmPrimitives primitives{panel_width, chunk_units, max_rows, Isa::has_pairs, Isa::stream_bytes, pack, convert_rows, multiply};
}  // namespace

const GemmPrimitives* gemm_avx512_bf16() { return &primitives; }

}  // namespace plait::kernels
#else
namespace plait::kernels {
const GemmPrimitives* gemm_avx512_bf16() { return nullptr; }
}  // namespace plait::kernels
#endif
