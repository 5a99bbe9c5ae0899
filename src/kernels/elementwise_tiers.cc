#include "kernels/elementwise_tiers.h"

namespace plait::kernels {

const ElementwiseKernels* elementwise_kernels(Tier tier) {
  switch (tier) {
    case Tier::reference:
      return elementwise_reference();
    case Tier::avx2:
      return elementwise_avx2();
    case Tier::avx512:
      return elementwise_avx512();
    case Tier::avx512_bf16:
      return elementwise_avx512_bf16();
    case Tier::neon:
      return elementwise_neon();
  }
  return nullptr;
}

}  // namespace plait::kernels
