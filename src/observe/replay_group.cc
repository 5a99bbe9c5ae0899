#include "observe/replay_group.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "base/status_macros.h"

namespace plait {
namespace {

/// More than any step signals, with room for what callers add to it.
constexpr uint64_t long_reached = std::numeric_limits<uint64_t>::max() / 2;

std::string describe_allocation(int64_t bytes) { return fmt::format("allocate {} bytes", bytes); }
std::string describe_exchange(std::string_view stage, size_t payload_bytes, size_t num_regions) {
  return fmt::format("exchange '{}' of {} bytes and {} regions", stage, payload_bytes, num_regions);
}

}  // namespace

void ReplayGroup::replay() {
  num_replayed_ = 0;
  replaying_ = true;
  for (int channel = 0; channel < comm::num_channels; ++channel) {
    own_values_[static_cast<size_t>(channel)].store(inner().signal_value(rank(), channel), std::memory_order_relaxed);
  }
}

Status ReplayGroup::finished() const {
  if (num_replayed_ == calls_.size()) return {};
  return Status::internal(
             fmt::format("the replay ended after {} of {} recorded calls: next was '{}'", num_replayed_, calls_.size(), calls_[num_replayed_].what))
      .at_rank(rank());
}

int64_t ReplayGroup::num_views() const {
  int64_t num_views = 0;
  for (const Call& call : calls_) {
    for (const std::vector<RegionView>& views : call.exchange.regions) {
      for (const RegionView& view : views) num_views += view.data() != nullptr ? 1 : 0;
    }
  }
  return num_views;
}

Result<const ReplayGroup::Call*> ReplayGroup::next(const std::string& what) {
  const std::string recorded = num_replayed_ < calls_.size() ? calls_[num_replayed_].what : "the end of the step";
  if (recorded != what) {
    return Status::internal(fmt::format("call {} of the replay is '{}', but '{}' was recorded", num_replayed_, what, recorded)).at_rank(rank());
  }
  return &calls_[num_replayed_++];
}

Status ReplayGroup::barrier(std::string_view stage) { return replaying_ ? Status() : inner().barrier(stage); }

Result<Exchange> ReplayGroup::exchange(std::string_view stage, std::span<const std::byte> payload, std::span<const Region> regions) {
  std::string what = describe_exchange(stage, payload.size(), regions.size());
  if (replaying_) {
    PLAIT_ASSIGN_OR_RETURN(const Call* call, next(what));
    return call->exchange;
  }
  PLAIT_ASSIGN_OR_RETURN(Exchange exchange, inner().exchange(stage, payload, regions));
  calls_.push_back({std::move(what), {}, exchange});
  return exchange;
}

Result<Region> ReplayGroup::allocate(int64_t bytes) {
  std::string what = describe_allocation(bytes);
  if (replaying_) PLAIT_RETURN_IF_ERROR(next(what).status());
  PLAIT_ASSIGN_OR_RETURN(Region region, inner().allocate(bytes));
  if (!replaying_) calls_.push_back({std::move(what), region, {}});
  return region;
}

Status ReplayGroup::all_to_all_v(const Context& context, std::string_view stage, const Region& own, std::span<const RegionView> regions,
                                 std::span<const SendBlock> send, std::span<const RecvBlock> recv) {
  return replaying_ ? Status() : inner().all_to_all_v(context, stage, own, regions, send, recv);
}

Status ReplayGroup::signal(int channel, uint64_t value) {
  if (!replaying_ || channel < 0 || channel >= comm::num_channels) return inner().signal(channel, value);
  own_values_[static_cast<size_t>(channel)].store(value, std::memory_order_release);
  return {};
}

Status ReplayGroup::wait(int peer, int channel, uint64_t value, std::string_view stage) {
  return replaying_ ? Status() : inner().wait(peer, channel, value, stage);
}

uint64_t ReplayGroup::signal_value(int peer, int channel) const {
  if (!replaying_) return inner().signal_value(peer, channel);
  return peer == rank() ? own_values_[static_cast<size_t>(channel)].load(std::memory_order_acquire) : long_reached;
}

}  // namespace plait
