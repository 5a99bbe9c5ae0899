#include "comm/control.h"

#include <algorithm>
#include <cstring>

namespace plait::comm {
namespace {

constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

void set_text(char* field, size_t capacity, std::string_view text) {
  const size_t length = std::min(text.size(), capacity - 1);
  if (length > 0) std::memcpy(field, text.data(), length);
  std::memset(field + length, 0, capacity - length);
}

ControlLayout::ControlLayout(int num_ranks, int64_t payload_capacity)
    : num_ranks_(num_ranks),
      payload_capacity_(payload_capacity),
      cells_offset_(round_up(sizeof(ControlHead), cache_line)),
      slots_offset_(cells_offset_ + num_ranks * int64_t{sizeof(RankCell)}),
      slot_bytes_(0) {
  slot_bytes_ = round_up(payload_offset() + payload_capacity_, 2 * cache_line);  // two lines: neighbours are prefetched in pairs
}

Slot Control::slot(int rank, int parity) const {
  const int64_t begin = layout_.slot_offset(rank, parity);
  return {at<SlotHeader>(begin), at<uint64_t>(begin + layout_.releases_offset()), at<std::byte>(begin + layout_.payload_offset())};
}

void Control::wake_all() const {
  head().round_event.notify(scope_);
  for (int rank = 0; rank < num_ranks(); ++rank) cell(rank).event.notify(scope_);
}

}  // namespace plait::comm
