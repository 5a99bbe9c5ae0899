#include "base/cpu.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "plait/context.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace plait {
namespace {

/// The value of the first line "key : value" of /proc/cpuinfo, or "".
std::string cpuinfo_value(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    auto colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, key.size(), key) != 0) continue;
    auto begin = line.find_first_not_of(" \t", colon + 1);
    if (begin != std::string::npos) return line.substr(begin);
  }
  return "";
}

#if defined(__x86_64__)

struct CpuidLeaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};
CpuidLeaf cpuid(unsigned leaf, unsigned subleaf) {
  CpuidLeaf r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

bool bit(unsigned word, int position) { return (word >> position & 1) != 0; }

/// XCR0: which register sets the operating system saves. Legal only where CPUID says OSXSAVE.
uint64_t read_xcr0() {
  uint32_t low = 0;
  uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

std::string missing(bool cpu_has, const char* feature, bool saved, const char* registers) {
  if (!cpu_has) return std::string("the CPU lacks ") + feature;
  if (!saved) return std::string("the operating system does not save the ") + registers + " registers";
  return "";
}

CpuFeatures detect() {
  CpuidLeaf one = cpuid(1, 0);
  CpuidLeaf seven = cpuid(7, 0);
  bool osxsave = bit(one.ecx, 27);
  uint64_t xcr0 = osxsave ? read_xcr0() : 0;
  constexpr uint64_t ymm_state = 0x6;   // XMM and YMM
  constexpr uint64_t zmm_state = 0xe6;  // these, opmask, and both halves of ZMM
  bool ymm_saved = (xcr0 & ymm_state) == ymm_state;
  bool zmm_saved = (xcr0 & zmm_state) == zmm_state;
  bool avx2 = bit(one.ecx, 28) && bit(one.ecx, 12) && bit(one.ecx, 29) && bit(seven.ebx, 5);
  bool avx512 = avx2 && bit(seven.ebx, 16) && bit(seven.ebx, 17) && bit(seven.ebx, 30) && bit(seven.ebx, 31);
  bool avx512_bf16 = avx512 && bit(cpuid(7, 1).eax, 5);

  CpuFeatures f;
  f.avx2_reason = missing(avx2, "AVX2, FMA and F16C", ymm_saved, "ymm");
  f.avx512_reason = missing(avx512, "AVX-512 F, BW, DQ and VL", zmm_saved, "zmm");
  f.avx512_bf16_reason = missing(avx512_bf16, "AVX512_BF16", zmm_saved, "zmm");
  f.neon_reason = "not an Arm CPU";
  f.model = cpuinfo_value("model name");
  return f;
}

#elif defined(__aarch64__)

CpuFeatures detect() {
  CpuFeatures f;
  f.neon_reason = (getauxval(AT_HWCAP) & HWCAP_ASIMD) != 0 ? "" : "the CPU lacks Advanced SIMD";
  f.avx2_reason = f.avx512_reason = f.avx512_bf16_reason = "not an x86 CPU";
  f.model = cpuinfo_value("model name");
  if (f.model.empty()) f.model = "AArch64 part " + cpuinfo_value("CPU part");
  return f;
}

#else

CpuFeatures detect() {
  CpuFeatures f;
  f.avx2_reason = f.avx512_reason = f.avx512_bf16_reason = "not an x86 CPU";
  f.neon_reason = "not an Arm CPU";
  return f;
}

#endif

CpuFeatures detect_with_flags() {
  CpuFeatures f = detect();
  f.avx2_fma_f16c = f.avx2_reason.empty();
  f.avx512 = f.avx512_reason.empty();
  f.avx512_bf16 = f.avx512_bf16_reason.empty();
  f.neon = f.neon_reason.empty();
  return f;
}

/// CPUs in this thread's affinity mask. Machines may have more CPUs than a cpu_set_t holds, so the mask grows until it fits.
int affinity_cpus() {
  for (size_t capacity = 1024; capacity <= 1 << 20; capacity *= 2) {
    cpu_set_t* set = CPU_ALLOC(capacity);
    if (set == nullptr) return 1;
    size_t bytes = CPU_ALLOC_SIZE(capacity);
    int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  return 1;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect_with_flags();
  return features;
}

int usable_cpus() {
  int cpus = affinity_cpus();
  double quota = cgroup_cpu_quota("");
  if (quota > 0) cpus = std::min(cpus, static_cast<int>(std::ceil(std::min(quota, 1e6))));
  return std::max(cpus, 1);
}

}  // namespace plait
