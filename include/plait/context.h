#pragma once
/// Context: what one rank computes with. Threads, reusable memory, kernels of a CPU tier, counters.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "plait/status.h"
#include "plait/tensor.h"

namespace plait {

/// The CPU tiers with kernels of their own. All give the same bits (docs/numerics.md).
enum class Tier : uint8_t { reference, avx2, avx512, avx512_bf16, neon };

std::string_view name(Tier tier);
/// "avx512_bf16" -> Tier::avx512_bf16; an unknown name is an error that lists the names.
Result<Tier> parse_tier(std::string_view text);

/// One tier on this machine: whether it can be used, and if not, why ("the CPU lacks avx512_bf16", "not in this build",
/// "the operating system does not save the zmm registers", "its self-check differs").
struct TierState {
  Tier tier;
  bool usable;
  std::string reason;
};
std::vector<TierState> tier_states();
/// The fastest usable tier, or the one forced by PLAIT_KERNEL (an unusable forced tier is an error that says why).
Result<Tier> default_tier();

/// The CPUs that this process may use: affinity and cgroup quota respected, at least 1.
int usable_cpus();

class ThreadPool;
class Arena;
class Recorder;
namespace kernels {
struct KernelSet;
}

/// The largest tile of a matrix product; 0 leaves it to the shape of the product. Columns are rounded up to whole panels. Results do not
/// depend on it.
struct TileShape {
  int64_t rows = 0;
  int64_t columns = 0;
};

struct ContextOptions {
  int threads = 0;          ///< worker threads including the caller; 0 = usable_cpus() (PLAIT_THREADS overrides)
  std::string kernel = {};  ///< tier name; "" = default_tier()
  TileShape tile = {};      ///< {0, 0}: that of PLAIT_TILE
};

/// Everything a call needs besides its arguments. One Context serves one calling thread at a time; several may coexist.
/// Example:
///   auto context = plait::Context::create({.threads = 2});
///   plait::Tensor y = (*context)->empty(plait::DType::bf16, {rows, n}).take();
class Context {
 public:
  static Result<std::unique_ptr<Context>> create(const ContextOptions& options = {});
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int threads() const;
  Tier tier() const;
  const TileShape& tile_shape() const { return tile_shape_; }
  ThreadPool& pool() const { return *pool_; }
  Arena& arena() const { return *arena_; }
  Recorder& recorder() const { return *recorder_; }
  const kernels::KernelSet& kernels() const { return *kernels_; }

  /// A contiguous tensor from the arena, content undefined. Error: resource_exhausted, naming the bytes.
  Result<Tensor> empty(DType dtype, std::initializer_list<int64_t> shape) const;
  Result<Tensor> zeros(DType dtype, std::initializer_list<int64_t> shape) const;
  /// Scratch of `bytes` bytes, 64-byte aligned, taken from the arena.
  Result<Buffer> scratch(int64_t bytes) const;

 private:
  Context();
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Recorder> recorder_;
  const kernels::KernelSet* kernels_ = nullptr;
  TileShape tile_shape_;
};

}  // namespace plait
