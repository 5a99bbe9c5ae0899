#pragma once
/// What the CPU can do and the operating system saves, and how many CPUs this process may use.

#include <cstdint>
#include <string>

namespace plait {

struct CpuFeatures {
  bool avx2_fma_f16c = false;  ///< AVX2, FMA and F16C, with ymm state saved by the operating system
  bool avx512 = false;         ///< F, BW, DQ, VL, with zmm state saved
  bool avx512_bf16 = false;
  bool neon = false;
  std::string model;  ///< "AMD EPYC ..." as the CPU or the kernel says it
  /// Why a feature set is missing: "" where it is there.
  std::string avx2_reason, avx512_reason, avx512_bf16_reason, neon_reason;
};

/// Detected once, then cached.
const CpuFeatures& cpu_features();

/// usable_cpus() is declared in plait/context.h; this is the quota part: CPUs granted by cgroup v1 or v2, or 0 where unlimited.
/// `root` is the file-system root to read from ("" = the real one; tests pass a directory).
double cgroup_cpu_quota(const std::string& root);
/// Bytes this process may still allocate: the least of free memory and what the cgroup leaves. `root` as above.
int64_t available_memory_bytes(const std::string& root);

}  // namespace plait
