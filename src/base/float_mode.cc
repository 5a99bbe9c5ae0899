#include "base/float_mode.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace plait {
namespace {

#if defined(__x86_64__)
// All exceptions masked (0x1f80), round to nearest even, FTZ (0x8000), DAZ (0x40).
constexpr uint64_t contract_mode = 0x9fc0;
uint64_t read_mode() { return _mm_getcsr(); }
void write_mode(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
// FZ; no traps, round to nearest even, NaNs propagate, f16 subnormals kept (FZ16 clear).
constexpr uint64_t contract_mode = uint64_t{1} << 24;
uint64_t read_mode() {
  uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
void write_mode(uint64_t mode) { asm volatile("msr fpcr, %0" ::"r"(mode)); }
#else
constexpr uint64_t contract_mode = 0;
uint64_t read_mode() { return 0; }
void write_mode(uint64_t) {}
#endif

}  // namespace

FloatMode::FloatMode() : saved_(read_mode()) { write_mode(contract_mode); }
FloatMode::~FloatMode() { write_mode(saved_); }

}  // namespace plait
