#include "kernels/kernel_set.h"

#include <array>

#include "kernels/elementwise_tiers.h"
#include "kernels/gemm_kernels.h"

namespace plait::kernels {
namespace {

constexpr int num_tiers = static_cast<int>(Tier::neon) + 1;

std::array<KernelSet, num_tiers> make_sets() {
  std::array<KernelSet, num_tiers> sets{};
  for (int i = 0; i < num_tiers; ++i) {
    Tier tier = static_cast<Tier>(i);
    sets[i] = {tier, gemm_kernels(tier), elementwise_kernels(tier)};
  }
  return sets;
}

}  // namespace

const KernelSet* kernel_set(Tier tier) {
  static const std::array<KernelSet, num_tiers> sets = make_sets();
  const KernelSet& set = sets[static_cast<int>(tier)];
  return set.gemm != nullptr && set.elementwise != nullptr ? &set : nullptr;
}

}  // namespace plait::kernels
