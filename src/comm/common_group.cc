#include "comm/common_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "comm/failure.h"

namespace plait::comm {

CommonGroup::CommonGroup(Engine engine, Protocol protocol, std::unique_ptr<SegmentStore> store)
    : engine_(engine),
      protocol_(std::move(protocol)),
      store_(std::move(store)),
      window_(std::make_shared<Window>(protocol_.rank())),
      views_(protocol_.rank(), window_, *store_) {}

CommonGroup::~CommonGroup() { protocol_.leave(); }

/// Every round, barriers too, carries releases and the ends of segments.
Slot CommonGroup::begin_round(CallKind kind, std::string_view stage, int64_t payload_bytes) {
  Slot slot = protocol_.begin_round(kind, stage, payload_bytes);
  const auto capacity = static_cast<size_t>(protocol_.control().layout().max_releases());
  slot.header->num_releases = static_cast<uint32_t>(views_.releases().take(slot.releases, capacity));
  const std::vector<uint32_t> retired = window_->end_exchange(max_retired);
  slot.header->num_retired = static_cast<uint32_t>(retired.size());
  std::copy(retired.begin(), retired.end(), slot.header->retired.begin());
  return slot;
}

Status CommonGroup::end_round() {
  PLAIT_RETURN_IF_ERROR(protocol_.end_round());
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Slot slot = protocol_.slot(peer);
    for (uint32_t i = 0; i < slot.header->num_releases; ++i) {
      if (owner_of(slot.releases[i]) == rank()) window_->release(slot.releases[i]);
    }
    for (uint32_t i = 0; i < slot.header->num_retired; ++i) views_.forget(peer, slot.header->retired[i]);
  }
  return {};
}

Status CommonGroup::barrier(std::string_view stage) {
  PLAIT_RETURN_IF_ERROR(protocol_.failure());
  begin_round(CallKind::barrier, stage, 0);
  return end_round();
}

Status CommonGroup::publish(std::span<const Region> regions, std::string_view stage) {
  if (regions.size() > max_published) {
    return protocol_.fail(
        Status::invalid_argument(fmt::format("{} regions in one exchange: at most {} may be published", regions.size(), max_published))
            .at_rank(rank())
            .in_stage(stage));
  }
  for (const Region& region : regions) {
    if (region.data() == nullptr) continue;
    Status status = window_->publish(region, size(), *store_);
    if (!status.ok()) return protocol_.fail(std::move(status).in_stage(stage));
  }
  return {};
}

Status CommonGroup::take_views(const SlotHeader& header, int peer, std::string_view stage, Exchange& exchange) {
  for (size_t i = 0; i < header.regions.size(); ++i) {
    if (header.regions[i].rank < 0) continue;
    Result<RegionView> view = views_.view(header.regions[i]);
    if (!view.ok()) return protocol_.fail(Status(view.status()).in_stage(stage));
    exchange.regions[i][static_cast<size_t>(peer)] = view.take();
  }
  return {};
}

Result<Exchange> CommonGroup::exchange(std::string_view stage, std::span<const std::byte> payload, std::span<const Region> regions) {
  PLAIT_RETURN_IF_ERROR(protocol_.failure());
  PLAIT_RETURN_IF_ERROR(publish(regions, stage));
  if (recorder_ != nullptr) recorder_->add(Counter::exchanges, 1);
  Exchange result;
  result.payload_bytes = static_cast<int64_t>(payload.size());
  for (std::vector<RegionView>& views : result.regions) views.resize(static_cast<size_t>(size()));
  const auto capacity = static_cast<size_t>(protocol_.control().layout().payload_capacity());
  size_t done = 0;
  do {
    const std::span<const std::byte> part = payload.subspan(done, std::min(capacity, payload.size() - done));
    Slot own = begin_round(CallKind::exchange, stage, result.payload_bytes);
    for (size_t i = 0; done == 0 && i < regions.size(); ++i) own.header->regions[i] = regions[i].ref();
    if (!part.empty()) std::memcpy(own.payload, part.data(), part.size());
    PLAIT_RETURN_IF_ERROR(end_round());
    if (done == 0) result.payloads.resize(payload.size() * static_cast<size_t>(size()));
    for (int peer = 0; peer < size(); ++peer) {
      const Slot slot = protocol_.slot(peer);
      if (!part.empty()) std::memcpy(result.payloads.data() + static_cast<size_t>(peer) * payload.size() + done, slot.payload, part.size());
      if (done == 0) PLAIT_RETURN_IF_ERROR(take_views(*slot.header, peer, stage, result));
    }
    done += part.size();
  } while (done < payload.size());
  return result;
}

Status CommonGroup::reserve(int64_t bytes) {
  PLAIT_RETURN_IF_ERROR(protocol_.lock_reserving());
  Status status = window_->grow(bytes, *store_);
  protocol_.unlock_reserving();
  return status.ok() ? status : std::move(status).at_rank(rank()).in_stage("allocate");
}

Result<Region> CommonGroup::allocate(int64_t bytes) {
  PLAIT_RETURN_IF_ERROR(protocol_.failure());
  constexpr int64_t largest = int64_t{1} << 46;  // beyond any machine's memory; keeps the roundings from overflowing
  if (bytes < 0 || bytes > largest) {
    return Status::invalid_argument(fmt::format("a region of {} bytes: sizes are 0 to {}", bytes, largest)).at_rank(rank()).in_stage("allocate");
  }
  std::optional<Region> region = window_->allocate_from_free(bytes);
  if (region) return *region;
  PLAIT_RETURN_IF_ERROR(reserve(bytes));
  return *window_->allocate_from_free(bytes);
}

void CommonGroup::abort(const Status& why) {
  const Status cause = why.ok() ? Status::aborted("no reason given") : why;
  Status status = Status::aborted(fmt::format("rank {} stopped the group: {}: {}", rank(), name(cause.code()), cause.message()));
  record_failure(protocol_.control(), rank(),
                 std::move(status).at_rank(cause.rank() >= 0 ? cause.rank() : rank()).at_expert(cause.expert()).in_stage(cause.stage()));
}

void CommonGroup::record_to(Recorder* recorder) {
  recorder_ = recorder;
  protocol_.record_to(recorder);
}

}  // namespace plait::comm
