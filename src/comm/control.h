#pragma once
/// The control block: memory that all ranks of a group share, through which they post, wait, signal and fail. Plain data and atomics at
/// fixed offsets, so that it may lie at another address in every process. Zero bytes are its initial state.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/futex.h"
#include "plait/group.h"

namespace plait::comm {

inline constexpr int num_channels = 16;
inline constexpr int max_ranks = 4096;
inline constexpr int64_t cache_line = 64;
inline constexpr int max_stage_bytes = 48;
inline constexpr int max_message_bytes = 2048;
inline constexpr int max_retired = 8;

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free, "atomics are shared between processes");

/// Something happened: a word to sleep on. The count of sleepers spares the wake-up call where nobody sleeps.
struct alignas(cache_line) Event {
  std::atomic<uint32_t> count;
  std::atomic<uint32_t> sleepers;

  void notify(FutexScope scope) {
    count.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) > 0) futex_wake(count, max_ranks, scope);
  }
};

struct alignas(cache_line) Channel {
  std::atomic<uint64_t> value;
};

/// What one rank says about itself. Written by that rank only.
struct RankCell {
  alignas(cache_line) std::atomic<uint64_t> posted;  ///< rounds that this rank has reached
  std::atomic<uint32_t> left;                        ///< 1 once its Group is gone
  std::atomic<int32_t> process;                      ///< process id for messages, 0 among threads
  std::array<std::atomic<uint64_t>, 16> cpus;        ///< CPUs that it may use, one bit each
  Event event;                                       ///< a channel rose
  std::array<Channel, num_channels> channels;
};

/// The first error of the group. `state`: 0 none, otherwise 2 * (rank + 1), plus 1 once the rest is written.
struct FailureRecord {
  alignas(cache_line) std::atomic<uint32_t> state;
  int32_t code;
  int32_t rank;
  int32_t expert;
  std::array<char, max_stage_bytes> stage;
  std::array<char, max_message_bytes> message;
};

struct ControlHead {
  alignas(cache_line) std::atomic<uint32_t> arrived;  ///< ranks that have reached the current round
  std::atomic<uint64_t> rounds_done;
  std::atomic<uint32_t> reserving;  ///< rank + 1 of the one that is reserving memory, 0 none
  Event round_event;
  FailureRecord failure;
};

enum class CallKind : uint32_t { barrier, exchange };

/// What a rank brings to a round. The lists and the payload part follow it in its slot.
struct SlotHeader {
  uint64_t round;
  int64_t payload_bytes;  ///< of the whole exchange, which may take several rounds
  CallKind kind;
  uint32_t num_releases;
  uint32_t num_retired;
  std::array<uint32_t, max_retired> retired;  ///< segments of this rank that hold no region any more
  std::array<char, max_stage_bytes> stage;
  std::array<RegionRef, max_published> regions;  ///< rank -1: none
};

/// Copies text into a fixed field, cut to fit, always ending in a zero.
void set_text(char* field, size_t capacity, std::string_view text);
template <size_t N>
void set_text(std::array<char, N>& field, std::string_view text) {
  set_text(field.data(), N, text);
}
template <size_t N>
std::string_view text(const std::array<char, N>& field) {
  return std::string_view(field.data());
}

/// Where everything lies in the control block: the one place for its offsets.
class ControlLayout {
 public:
  ControlLayout(int num_ranks, int64_t payload_capacity);

  int num_ranks() const { return num_ranks_; }
  int64_t payload_capacity() const { return payload_capacity_; }
  /// A rank that publishes nothing but drops views of all others' regions keeps up: two lists' worth per round.
  int64_t max_releases() const { return 32 + 2 * int64_t{num_ranks_}; }
  int64_t cell_offset(int rank) const { return cells_offset_ + rank * int64_t{sizeof(RankCell)}; }
  int64_t slot_offset(int rank, int parity) const { return slots_offset_ + (2 * int64_t{rank} + parity) * slot_bytes_; }
  int64_t releases_offset() const { return int64_t{sizeof(SlotHeader)}; }
  int64_t payload_offset() const { return releases_offset() + max_releases() * 8; }
  int64_t total_bytes() const { return slots_offset_ + 2 * int64_t{num_ranks_} * slot_bytes_; }

 private:
  int num_ranks_;
  int64_t payload_capacity_;
  int64_t cells_offset_;
  int64_t slots_offset_;
  int64_t slot_bytes_;
};

/// One rank's slot of one round.
struct Slot {
  SlotHeader* header;
  uint64_t* releases;
  std::byte* payload;
};

/// A typed view of the control block; holds its memory.
class Control {
 public:
  Control(std::shared_ptr<std::byte> memory, ControlLayout layout, FutexScope scope) : memory_(std::move(memory)), layout_(layout), scope_(scope) {}

  const ControlLayout& layout() const { return layout_; }
  int num_ranks() const { return layout_.num_ranks(); }
  FutexScope scope() const { return scope_; }
  ControlHead& head() const { return *at<ControlHead>(0); }
  RankCell& cell(int rank) const { return *at<RankCell>(layout_.cell_offset(rank)); }
  Slot slot(int rank, int parity) const;
  void wake_all() const;

 private:
  template <typename T>
  T* at(int64_t offset) const {
    return reinterpret_cast<T*>(memory_.get() + offset);
  }
  std::shared_ptr<std::byte> memory_;
  ControlLayout layout_;
  FutexScope scope_;
};

/// Payload bytes per slot. The counts of 512 experts, sent and expected, with their signature take one round.
inline constexpr int64_t default_payload_capacity = 12288;

}  // namespace plait::comm
