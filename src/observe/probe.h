#pragma once
/// Short measurements of what the machine reaches, to be taken between the runs that are held against them.

#include <memory>

#include "base/arena.h"
#include "observe/bench_gmm.h"
#include "observe/probe_loops.h"

namespace plait {

/// Keeps the best of all bursts so far. One burst is about a millisecond of arithmetic, or one pass over `read_bytes()` of memory.
class MachineProbe {
 public:
  /// Takes memory well beyond the caches, on huge pages where allowed, and fills it. Error: resource_exhausted.
  static Result<MachineProbe> create(const Context& context);

  void burst_flops(DType dtype);
  void burst_read();
  const Probe& best() const { return best_; }
  int64_t read_bytes() const { return read_bytes_; }

 private:
  explicit MachineProbe(const Context& context);
  /// Nanoseconds until all threads have done `iterations` rounds each.
  double run_ns(const probe::FlopsLoop& loop, int64_t iterations) const;
  int64_t calibrate(const probe::FlopsLoop& loop) const;

  const Context* context_;
  probe::FlopsLoop f32_, bf16_;
  int64_t f32_iterations_ = 0, bf16_iterations_ = 0;
  std::unique_ptr<Arena> arena_;  ///< its own, so that the context's memory figures do not count the probe
  Buffer memory_;
  int64_t read_bytes_ = 0;
  Probe best_;
};

}  // namespace plait
