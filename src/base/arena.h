#pragma once
/// Memory that is reused from call to call: fresh 4 KiB pages cost more than the matmul at few rows.

#include <cstdint>
#include <memory>

#include "plait/status.h"
#include "plait/tensor.h"

namespace plait {

/// A pool of blocks, aligned to 64 bytes (large ones to huge pages, where allowed). take() prefers the smallest free block that fits
/// without wasting more than half of it; a dropped Buffer goes back to the pool, from any thread, and outlives the Arena safely.
/// Thread-safe.
class Arena {
 public:
  Arena();
  ~Arena();

  /// A buffer of at least `bytes` bytes, content undefined; 0 bytes gives a valid pointer. Error: resource_exhausted.
  Result<Buffer> take(int64_t bytes);

  int64_t bytes_in_use() const;
  int64_t peak_bytes() const;  ///< high-water mark of bytes_in_use since the last reset_peak()
  void reset_peak();
  void trim();  ///< gives free blocks back to the system

 private:
  struct Pool;
  std::shared_ptr<Pool> pool_;
};

}  // namespace plait
