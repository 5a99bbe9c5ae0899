#include <cstdlib>

#include <gtest/gtest.h>

#include "kernels/gemm_kernels.h"
#include "kernels/kernel_set.h"
#include "plait/context.h"

namespace plait {
namespace {

constexpr Tier tiers[] = {Tier::reference, Tier::avx2, Tier::avx512, Tier::avx512_bf16, Tier::neon};

/// PLAIT_KERNEL for the length of a test.
class ForcedKernel {
 public:
  explicit ForcedKernel(const char* value) {
    if (const char* old = std::getenv("PLAIT_KERNEL")) old_ = old;
    setenv("PLAIT_KERNEL", value, 1);
  }
  ~ForcedKernel() { old_.empty() ? unsetenv("PLAIT_KERNEL") : setenv("PLAIT_KERNEL", old_.c_str(), 1); }
  ForcedKernel(const ForcedKernel&) = delete;
  ForcedKernel& operator=(const ForcedKernel&) = delete;

 private:
  std::string old_;
};

TEST(Tier, NamesParseBack) {
  for (Tier tier : tiers) EXPECT_EQ(parse_tier(name(tier)).value(), tier);
}

TEST(Tier, AnUnknownNameListsTheKnownOnes) {
  auto tier = parse_tier("avx51");
  ASSERT_FALSE(tier.ok());
  EXPECT_EQ(tier.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(tier.status().message().find("\"avx51\""), std::string::npos);
  EXPECT_NE(tier.status().message().find("reference, avx2, avx512, avx512_bf16, neon"), std::string::npos);
}

TEST(Tier, EveryTierHasAStateAndUnusableOnesAReason) {
  const auto states = tier_states();
  ASSERT_EQ(states.size(), std::size(tiers));
  for (size_t i = 0; i < states.size(); ++i) {
    EXPECT_EQ(states[i].tier, tiers[i]);
    EXPECT_EQ(states[i].usable, states[i].reason.empty()) << states[i].reason;
  }
  for (const TierState& state : states) {
    EXPECT_EQ(state.reason.find("self-check"), std::string::npos) << name(state.tier) << ": " << state.reason;
  }
  EXPECT_TRUE(states[0].usable) << "the reference runs everywhere: " << states[0].reason;
}

TEST(Tier, TheDefaultIsTheFastestUsableOne) {
  ForcedKernel none("");
  Tier fastest = Tier::reference;
  for (const TierState& state : tier_states()) {
    if (state.usable) fastest = state.tier;
  }
  EXPECT_EQ(default_tier().value(), fastest);
}

TEST(Tier, TheEnvironmentForcesATier) {
  for (const TierState& state : tier_states()) {
    ForcedKernel forced(std::string(name(state.tier)).c_str());
    auto tier = default_tier();
    if (state.usable) {
      EXPECT_EQ(tier.value(), state.tier);
    } else {
      ASSERT_FALSE(tier.ok());
      EXPECT_EQ(tier.status().code(), StatusCode::unavailable);
      EXPECT_NE(tier.status().message().find("PLAIT_KERNEL=" + std::string(name(state.tier))), std::string::npos) << tier.status().message();
      EXPECT_NE(tier.status().message().find(state.reason), std::string::npos) << tier.status().message();
    }
  }
  ForcedKernel unknown("fast");
  EXPECT_EQ(default_tier().status().code(), StatusCode::invalid_argument);
  EXPECT_NE(default_tier().status().message().find("PLAIT_KERNEL=fast: "), std::string::npos) << default_tier().status().message();
}

TEST(Tier, TheBuildHasKernelsOfOneArchitecture) {
  EXPECT_NE(kernels::kernel_set(Tier::reference), nullptr);
  EXPECT_EQ(kernels::kernel_set(Tier::reference)->gemm->primitives, nullptr);
  EXPECT_NE(kernels::kernel_set(Tier::neon) == nullptr, kernels::kernel_set(Tier::avx2) == nullptr);
  for (Tier tier : tiers) {
    const kernels::KernelSet* set = kernels::kernel_set(tier);
    EXPECT_EQ(set == nullptr ? tier : set->tier, tier);
  }
}

void multiply_by_nothing(const kernels::PanelProduct& product) {
  for (int64_t r = 0; r < product.num_rows; ++r) {
    for (int64_t c = 0; c < product.columns * size_of(product.out_type) && !product.store_acc; ++c) {
      product.out[r][product.out_offset + c] = std::byte{0};
    }
  }
}

TEST(Tier, TheSelfCheckFindsAWrongKernel) {
  for (const TierState& state : tier_states()) {
    if (!state.usable || state.tier == Tier::reference) continue;
    kernels::GemmPrimitives broken = *kernels::kernel_set(state.tier)->gemm->primitives;
    EXPECT_TRUE(kernels::gemm_self_check({state.tier, &broken}));
    broken.multiply = multiply_by_nothing;
    EXPECT_FALSE(kernels::gemm_self_check({state.tier, &broken}));
  }
}

}  // namespace
}  // namespace plait
