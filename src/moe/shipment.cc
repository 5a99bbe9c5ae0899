#include "moe/shipment.h"

#include <utility>

#include "base/status_macros.h"

namespace plait::moe {
namespace {

std::vector<int64_t> bytes_per_row(std::span<const Section> sections) {
  std::vector<int64_t> bytes;
  for (const Section& section : sections) bytes.push_back(section.row_bytes());
  return bytes;
}

/// Rows that cross to or from other ranks (the group counts their bytes); a rank's own rows are no traffic.
void count_rows(const LayerCall& call, Direction direction, const RoutingPlan& plan) {
  const int rank = plan.rank();
  const ExpertPlacement& place = plan.placement();
  const int64_t own_first = place.global(rank, 0), own_end = place.global(rank, place.experts_per_rank());
  const int64_t own = plan.send_begin(rank, own_end) - plan.send_begin(rank, own_first);
  const bool outward = direction == Direction::dispatch;  // seen from the rank that the tokens belong to
  Recorder& recorder = call.context.recorder();
  recorder.add(Counter::rows_sent, (outward ? plan.num_send_rows() : plan.num_recv_rows()) - own);
  recorder.add(Counter::rows_received, (outward ? plan.num_recv_rows() : plan.num_send_rows()) - own);
}

}  // namespace

std::vector<int64_t> Shipment::row_bytes() const { return bytes_per_row(sections_); }

Result<Shipment> Shipment::open(const LayerCall& call, int64_t num_rows, std::span<const Section> sections) {
  Shipment shipment(SectionLayout(num_rows, bytes_per_row(sections)), sections);
  if (call.group.size() == 1) {
    PLAIT_ASSIGN_OR_RETURN(shipment.local_, call.context.scratch(shipment.layout_.bytes()));
  } else if (shipment.layout_.bytes() > 0) {
    PLAIT_ASSIGN_OR_RETURN(shipment.region_, call.group.allocate(shipment.layout_.bytes()));
  }
  return shipment;
}

TensorView Shipment::rows(size_t section) const {
  std::byte* base = local_ ? local_.get() : region_.data();
  std::byte* data = base != nullptr ? base + layout_.offset(section) : nullptr;
  return {data, sections_[section].dtype, {layout_.num_rows(), sections_[section].columns}};
}

Result<Shipment::Delivered> Shipment::deliver(const LayerCall& call, Direction direction, const RoutingPlan& plan,
                                              std::span<const RegionView> regions) const {
  Delivered delivered;
  if (local_) {
    for (size_t i = 0; i < sections_.size(); ++i) delivered[i] = {local_, rows(i)};
    return delivered;
  }
  const int64_t num_rows = direction == Direction::dispatch ? plan.num_recv_rows() : plan.num_send_rows();
  std::vector<std::byte*> destinations;
  for (size_t i = 0; i < sections_.size(); ++i) {
    PLAIT_ASSIGN_OR_RETURN(delivered[i], call.context.empty(sections_[i].dtype, {num_rows, sections_[i].columns}));
    destinations.push_back(delivered[i].view.data);
  }
  const auto make_blocks = direction == Direction::dispatch ? dispatch_blocks : combine_blocks;
  const RowBlocks blocks = make_blocks(plan, row_bytes(), destinations);
  count_rows(call, direction, plan);
  PLAIT_RETURN_IF_ERROR(call.group.all_to_all_v(call.context, name(call.stage), region_, regions, blocks.send, blocks.recv));
  return delivered;
}

}  // namespace plait::moe
