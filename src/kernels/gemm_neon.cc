// Built with baseline flags; only the region below uses the instruction set, after the CPU has been asked (tier.cc).

#include "kernels/gemm_kernels.h"

#if defined(__aarch64__)
#include "kernels/gemm_target.h"

namespace plait::kernels {

namespace {

#include "kernels/gemm_neon_isa.h"

#include "kernels/gemm_pack_body.h"

#include "kernels/gemm_body.h"

}  // namespace

namespace {
constexpr GemmPrimitives primitives{panel_width, chunk_units, max_rows, Isa::has_pairs, Isa::stream_bytes, pack, convert_rows, multiply};
}  // namespace

const GemmPrimitives* gemm_neon() { return &primitives; }

}  // namespace plait::kernels
#else
namespace plait::kernels {
const GemmPrimitives* gemm_neon() { return nullptr; }
}  // namespace plait::kernels
#endif
