#include "kernels/gemm_kernels.h"

namespace plait::kernels {
namespace {

const GemmPrimitives* primitives_of(Tier tier) {
  switch (tier) {
    case Tier::reference:
      return nullptr;
    case Tier::avx2:
      return gemm_avx2();
    case Tier::avx512:
      return gemm_avx512();
    case Tier::avx512_bf16:
      return gemm_avx512_bf16();
    case Tier::neon:
      return gemm_neon();
  }
  return nullptr;
}

template <Tier tier>
const GemmKernels* table() {
  static const GemmKernels kernels{tier, primitives_of(tier)};
  return tier == Tier::reference || kernels.primitives != nullptr ? &kernels : nullptr;
}

}  // namespace

const GemmKernels* gemm_kernels(Tier tier) {
  switch (tier) {
    case Tier::reference:
      return table<Tier::reference>();
    case Tier::avx2:
      return table<Tier::avx2>();
    case Tier::avx512:
      return table<Tier::avx512>();
    case Tier::avx512_bf16:
      return table<Tier::avx512_bf16>();
    case Tier::neon:
      return table<Tier::neon>();
  }
  return nullptr;
}

}  // namespace plait::kernels
