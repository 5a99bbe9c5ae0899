#include "base/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>

#include "base/cpu.h"
#include "plait/env.h"

#if defined(__SANITIZE_ADDRESS__)
#define PLAIT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PLAIT_ASAN 1
#endif
#endif
#ifdef PLAIT_ASAN
#include <sanitizer/asan_interface.h>
#define PLAIT_POISON(p, n) ASAN_POISON_MEMORY_REGION(p, static_cast<size_t>(n))
#define PLAIT_UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, static_cast<size_t>(n))
#else
#define PLAIT_POISON(p, n) static_cast<void>(0)
#define PLAIT_UNPOISON(p, n) static_cast<void>(0)
#endif

namespace plait {
namespace {

constexpr int64_t alignment = 64;
constexpr int64_t huge_page = int64_t{2} << 20;
constexpr int64_t mapped_from = 2 * huge_page;         // smaller blocks come from malloc
constexpr int64_t checked_from = int64_t{64} << 20;    // fresh blocks from here on are compared with the memory that is left
constexpr int64_t largest_request = int64_t{1} << 46;  // beyond any address space in use; keeps the roundings below from overflowing

constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// Room of a fresh block: an eighth of the next lower power of two as step, so that slightly larger calls find a block that fits.
int64_t capacity_for(int64_t bytes) {
  auto step = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes)) / 8);
  return round_up(bytes, std::max(step, bytes >= mapped_from ? huge_page : alignment));
}

/// Address space aligned to a huge page: one huge page more is mapped, and what sticks out is given back. Null on failure.
std::byte* map_aligned(int64_t bytes, bool huge_pages) {
  auto total = static_cast<size_t>(bytes + huge_page);
  void* map = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  auto begin = reinterpret_cast<uintptr_t>(map);
  uintptr_t aligned = (begin + huge_page - 1) / huge_page * huge_page;
  auto head = aligned - begin;
  auto tail = static_cast<size_t>(huge_page) - head;
  if (head > 0) munmap(map, head);
  if (tail > 0) munmap(reinterpret_cast<void*>(aligned + static_cast<size_t>(bytes)), tail);
  auto* data = reinterpret_cast<std::byte*>(aligned);
  if (huge_pages) madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // only a wish: a refusal costs speed, nothing else
  return data;
}

}  // namespace

struct Arena::Pool {
  mutable std::mutex mutex;
  std::multimap<int64_t, std::byte*> free_blocks;  ///< by capacity
  int64_t in_use = 0;
  int64_t peak = 0;
  bool huge_pages = true;

  ~Pool() { release_all(); }

  std::byte* obtain(int64_t capacity) const {
    if (capacity >= mapped_from) return map_aligned(capacity, huge_pages);
    return static_cast<std::byte*>(std::aligned_alloc(alignment, static_cast<size_t>(capacity)));
  }
  static void release(std::byte* data, int64_t capacity) {
    PLAIT_UNPOISON(data, capacity);
    if (capacity >= mapped_from) {
      munmap(data, static_cast<size_t>(capacity));
    } else {
      std::free(data);
    }
  }
  void release_all() {
    for (auto [capacity, data] : free_blocks) release(data, capacity);
    free_blocks.clear();
  }

  Result<std::pair<std::byte*, int64_t>> take_block(int64_t bytes);
  void give_back(std::byte* data, int64_t capacity, int64_t bytes);
};

/// A free block that fits, or a fresh one. A fresh block replaces a free one that was a little too small, so that slowly growing
/// requests do not leave a trail of blocks.
Result<std::pair<std::byte*, int64_t>> Arena::Pool::take_block(int64_t bytes) {
  std::scoped_lock lock(mutex);
  auto found = free_blocks.lower_bound(bytes);
  std::pair<std::byte*, int64_t> block{nullptr, capacity_for(bytes)};
  if (found != free_blocks.end() && found->first <= std::max(2 * bytes, block.second)) {
    block = {found->second, found->first};
    free_blocks.erase(found);
  } else {
    if (found != free_blocks.begin() && std::prev(found)->first > bytes / 2) {
      found = std::prev(found);
      release(found->second, found->first);
      free_blocks.erase(found);
    }
    int64_t available = block.second >= checked_from ? available_memory_bytes("") : block.second;
    if (available < block.second) {
      release_all();
      available = available_memory_bytes("");
    }
    if (available >= block.second) block.first = obtain(block.second);
    if (block.first == nullptr) {
      return Status::resource_exhausted(
          fmt::format("a buffer of {} bytes does not fit into memory: {} bytes are in use by this context, {} bytes are "
                      "available on this machine or to its control group; use fewer tokens or ranks, or a smaller layer",
                      bytes, in_use, available_memory_bytes("")));
    }
  }
  in_use += bytes;
  peak = std::max(peak, in_use);
  PLAIT_UNPOISON(block.first, block.second);
  PLAIT_POISON(block.first + bytes, block.second - bytes);
  return block;
}

void Arena::Pool::give_back(std::byte* data, int64_t capacity, int64_t bytes) {
  std::scoped_lock lock(mutex);
  in_use -= bytes;
  PLAIT_POISON(data, capacity);
  free_blocks.emplace(capacity, data);
}

Arena::Arena() : pool_(std::make_shared<Pool>()) {
  Result<Env> env = Env::read();  // a malformed environment is reported by Context::create; here the default serves
  pool_->huge_pages = env.ok() ? env->huge_pages : Env{}.huge_pages;
}
Arena::~Arena() = default;

Result<Buffer> Arena::take(int64_t bytes) {
  if (bytes < 0) return Status::internal(fmt::format("a buffer of {} bytes was asked for", bytes));
  if (bytes > largest_request) return Status::resource_exhausted(fmt::format("a buffer of {} bytes was asked for, more than any machine has", bytes));
  int64_t rounded = std::max(round_up(bytes, alignment), alignment);
  Result<std::pair<std::byte*, int64_t>> block = pool_->take_block(rounded);
  if (!block.ok()) return block.status();
  auto give_back = [pool = pool_, capacity = block->second, rounded](std::byte* data) { pool->give_back(data, capacity, rounded); };
  try {
    return Buffer(block->first, give_back);  // on failure shared_ptr calls give_back itself
  } catch (const std::bad_alloc&) {
    return Status::resource_exhausted(fmt::format("no memory for the bookkeeping of a buffer of {} bytes", bytes));
  }
}

int64_t Arena::bytes_in_use() const {
  std::scoped_lock lock(pool_->mutex);
  return pool_->in_use;
}
int64_t Arena::peak_bytes() const {
  std::scoped_lock lock(pool_->mutex);
  return pool_->peak;
}
void Arena::reset_peak() {
  std::scoped_lock lock(pool_->mutex);
  pool_->peak = pool_->in_use;
}
void Arena::trim() {
  std::scoped_lock lock(pool_->mutex);
  pool_->release_all();
}

}  // namespace plait
