#pragma once
/// Floating-point mode of the numerics contract: round to nearest even, denormals flushed and taken as zero (FTZ, DAZ; FPCR.FZ).

#include <cstdint>

namespace plait {

/// Sets the contract's mode for the current thread and restores the caller's on destruction, on error paths too.
class FloatMode {
 public:
  FloatMode();
  ~FloatMode();
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  uint64_t saved_;
};

}  // namespace plait
