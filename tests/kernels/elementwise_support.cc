#include "kernels/elementwise_support.h"

#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/cpu.h"
#include "kernels/elementwise_tiers.h"
#include "support/test_tensors.h"

namespace plait::test {

std::vector<NamedElementwise> elementwise_tiers() {
  const CpuFeatures& cpu = cpu_features();
  std::vector<NamedElementwise> tiers = {{"reference", kernels::elementwise_reference()}};
  auto add = [&](bool supported, Tier tier) {
    const kernels::ElementwiseKernels* table = kernels::elementwise_kernels(tier);
    if (supported && table != nullptr) tiers.push_back({std::string(name(tier)), table});
  };
  add(cpu.avx2_fma_f16c, Tier::avx2);
  add(cpu.avx512, Tier::avx512);
  add(cpu.avx512_bf16, Tier::avx512_bf16);
  add(cpu.neon, Tier::neon);
  return tiers;
}

const kernels::ElementwiseKernels& reference_elementwise() { return *kernels::elementwise_reference(); }

namespace {
constexpr std::byte pattern{0xa5};
}

GuardedRow::GuardedRow(int64_t max_bytes) {
  int64_t page = sysconf(_SC_PAGESIZE);
  int64_t usable = max_bytes / page * page + 2 * page;  // at least a page of pattern before the longest row
  mapping_bytes_ = usable + page;
  void* p = mmap(nullptr, static_cast<size_t>(mapping_bytes_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mapping_ = static_cast<std::byte*>(p);
  end_ = mapping_ + usable;
  mprotect(end_, static_cast<size_t>(page), PROT_NONE);
  resize(0);
}
void GuardedRow::resize(int64_t bytes) {
  bytes_ = bytes;
  std::memset(mapping_, static_cast<int>(pattern), static_cast<size_t>(end_ - mapping_));
}
GuardedRow::~GuardedRow() { munmap(mapping_, static_cast<size_t>(mapping_bytes_)); }

bool GuardedRow::intact() const {
  for (const std::byte* p = mapping_; p < data(); ++p) {
    if (*p != pattern) return false;
  }
  return true;
}

std::vector<float> any_values(uint64_t seed, int64_t n, int limit) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr float special[] = {
      0.0F,       -0.0F,      1.0F,       -1.0F,     infinity,        -infinity,       std::numeric_limits<float>::quiet_NaN(),
      0x1p-149F,  -0x1p-127F, 0x1p-126F,  88.72284F, 88.722839F,      -87.33654F,      -103.97F,
      0x1p-24F,   0x1p-25F,   65519.996F, 65520.0F,  0x1.fffffep127F, 0x1.01p0F,       0x1.03p0F,
      0x1.002p0F, 0x1.006p0F, -30.0F,     7.0F,      -7.0F,           0x1.fffffcp-127F};
  Random random(seed);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) {
    switch (random.below(3)) {
      case 0:
        value = random.uniform(-8, 8);
        break;
      case 1:
        value = std::ldexp(random.uniform(1, 2), static_cast<int>(random.below(2 * limit + 1)) - limit) * (random.below(2) != 0 ? 1.0F : -1.0F);
        break;
      default:
        value = special[random.below(std::size(special))];
    }
  }
  return values;
}

std::vector<std::byte> row_of(DType type, const std::vector<float>& values) {
  auto n = static_cast<int64_t>(values.size());
  std::vector<std::byte> row(static_cast<size_t>(n * size_of(type)));
  TensorView view(row.data(), type, {n});
  for (int64_t i = 0; i < n; ++i) set(view, i, values[static_cast<size_t>(i)]);
  return row;
}

uint32_t bits_of(float x) { return std::isnan(x) ? 0x7fc00000U : std::bit_cast<uint32_t>(x); }

std::string row_difference(DType type, const std::byte* a, const std::byte* b, int64_t n) {
  return bit_difference(ConstTensorView(a, type, {n}), ConstTensorView(b, type, {n}));
}

double ulps(float got, double exact) {
  if (std::isnan(exact) || std::isinf(exact)) return bits_of(got) == bits_of(static_cast<float>(exact)) ? 0 : HUGE_VAL;
  return std::fabs(static_cast<double>(got) - exact) / std::ldexp(1.0, std::max(std::ilogb(exact), -126) - 23);
}

}  // namespace plait::test
