#include <array>
#include <string>

#include <fmt/format.h>

#include "base/cpu.h"
#include "base/status_macros.h"
#include "kernels/kernel_set.h"
#include "plait/context.h"
#include "plait/env.h"

namespace plait {
namespace {

/// Slowest first: the last usable one is the default.
constexpr std::array all_tiers{Tier::reference, Tier::avx2, Tier::avx512, Tier::avx512_bf16, Tier::neon};

/// "" where the CPU and the operating system support the tier.
std::string missing_feature(Tier tier) {
  const CpuFeatures& cpu = cpu_features();
  switch (tier) {
    case Tier::reference:
      return "";
    case Tier::avx2:
      return cpu.avx2_fma_f16c ? "" : cpu.avx2_reason;
    case Tier::avx512:
      return cpu.avx512 ? "" : cpu.avx512_reason;
    case Tier::avx512_bf16:
      if (!cpu.avx512) return cpu.avx512_reason;
      return cpu.avx512_bf16 ? "" : cpu.avx512_bf16_reason;
    case Tier::neon:
      return cpu.neon ? "" : cpu.neon_reason;
  }
  return "unknown";
}

std::string unusable_reason(Tier tier) {
  const kernels::KernelSet* set = kernels::kernel_set(tier);
  if (set == nullptr) return "not in this build";
  std::string missing = missing_feature(tier);
  if (!missing.empty()) return missing;
  if (!kernels::gemm_self_check(*set->gemm)) return "its self-check of matrix products differs";
  if (!kernels::elementwise_self_check(*set->elementwise)) return "its self-check of elementwise functions differs";
  return "";
}

std::vector<TierState> check_tiers() {
  std::vector<TierState> states;
  for (Tier tier : all_tiers) {
    std::string reason = unusable_reason(tier);
    states.push_back({tier, reason.empty(), reason});
  }
  return states;
}

std::string join_names(const std::vector<TierState>& states, bool usable_only) {
  std::string names;
  for (const TierState& state : states) {
    if (usable_only && !state.usable) continue;
    if (!names.empty()) names += ", ";
    names += name(state.tier);
  }
  return names;
}

}  // namespace

std::string_view name(Tier tier) {
  switch (tier) {
    case Tier::reference:
      return "reference";
    case Tier::avx2:
      return "avx2";
    case Tier::avx512:
      return "avx512";
    case Tier::avx512_bf16:
      return "avx512_bf16";
    case Tier::neon:
      return "neon";
  }
  return "unknown";
}

Result<Tier> parse_tier(std::string_view text) {
  std::string known;
  for (Tier tier : all_tiers) {
    if (name(tier) == text) return tier;
    known += known.empty() ? "" : ", ";
    known += name(tier);
  }
  return Status::invalid_argument(fmt::format("kernel tier \"{}\" is unknown; the tiers are {}", text, known));
}

std::vector<TierState> tier_states() {
  static const std::vector<TierState> states = check_tiers();
  return states;
}

namespace kernels {

Result<Tier> usable_tier(std::string_view text, std::string_view origin) {
  const Result<Tier> known = parse_tier(text);
  if (!known.ok()) return Status::invalid_argument(fmt::format("{}: {}", origin, known.status().message()));
  const Tier tier = *known;
  const std::vector<TierState> states = tier_states();
  for (const TierState& state : states) {
    if (state.tier == tier && !state.usable) {
      return Status::unavailable(
          fmt::format("{}: kernel tier {} cannot be used here: {}; usable: {}", origin, text, state.reason, join_names(states, true)));
    }
  }
  return tier;
}

}  // namespace kernels

Result<Tier> default_tier() {
  PLAIT_ASSIGN_OR_RETURN(Env env, Env::read());
  if (!env.kernel.empty()) return kernels::usable_tier(env.kernel, "PLAIT_KERNEL=" + env.kernel);
  Tier best = Tier::reference;
  for (const TierState& state : tier_states()) {
    if (state.usable) best = state.tier;
  }
  return best;
}

}  // namespace plait
