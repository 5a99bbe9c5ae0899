#pragma once
/// The loops behind the probe: multiply-adds on registers, and reading memory. docs/performance.md says how their figures are used.

#include <cstdint>

#include "plait/context.h"

namespace plait::probe {

/// Runs `iterations` rounds of independent chains on registers and returns a value made from all of them.
struct FlopsLoop {
  float (*run)(int64_t iterations);
  double flops_per_iteration;
};
/// The fastest multiply-add of float32 values that the tier's kernels use.
FlopsLoop f32_loop(Tier tier);
/// The same for bf16: the dot-product instruction where the tier has one, otherwise its float32 loop (bf16 is converted there).
FlopsLoop bf16_loop(Tier tier);

/// Reads `bytes` bytes (a multiple of 128) from 64-byte aligned memory once, and returns a value made from all of them.
uint64_t read_bytes(const std::byte* p, int64_t bytes);

}  // namespace plait::probe
