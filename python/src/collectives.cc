#include "collectives.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

namespace plait::python {
namespace {

constexpr int64_t max_piece = 64 << 20;

/// Fills `region` with a piece of this rank's bytes, shows it to all and copies what they show.
Status gather_piece(Group& group, const std::string& stage, const Region& region, const std::byte* own, int64_t begin, int64_t bytes,
                    std::byte* out) {
  const int64_t piece = std::min(max_piece, bytes - begin);
  std::memcpy(region.data(), own + begin, static_cast<size_t>(piece));
  Result<Exchange> brought = group.exchange(stage, std::as_bytes(std::span(&bytes, 1)), std::span(&region, 1));
  if (!brought.ok()) return brought.status();
  for (int rank = 0; rank < group.size(); ++rank) {
    int64_t peer_bytes = 0;
    std::memcpy(&peer_bytes, brought->payload(rank).data(), sizeof(peer_bytes));
    if (peer_bytes != bytes) {
      return Status::invalid_argument(stage + ": rank " + std::to_string(rank) + " gives " + std::to_string(peer_bytes) + " bytes, rank " +
                                      std::to_string(group.rank()) + " gives " + std::to_string(bytes) + "; all give equally many")
          .at_rank(rank);
    }
    const std::byte* from = brought->regions[0][static_cast<size_t>(rank)].data();
    if (out != nullptr) std::memcpy(out + rank * bytes + begin, from, static_cast<size_t>(piece));
  }
  return group.barrier(stage);  // all have copied: the region may be filled again
}

}  // namespace

Result<std::vector<std::string>> exchange_bytes(Group& group, const std::string& stage, const std::string& payload) {
  Result<Exchange> brought = group.exchange(stage, std::as_bytes(std::span(payload)));
  if (!brought.ok()) return brought.status();
  std::vector<std::string> payloads;
  payloads.reserve(static_cast<size_t>(group.size()));
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::span<const std::byte> bytes = brought->payload(rank);
    payloads.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return payloads;
}

Status gather_bytes(Group& group, const std::string& stage, const std::byte* own, int64_t bytes, std::byte* out) {
  Result<Region> region = group.allocate(std::max<int64_t>(1, std::min(bytes, max_piece)));
  if (!region.ok()) return region.status();
  for (int64_t begin = 0; begin < bytes; begin += max_piece) {
    if (Status status = gather_piece(group, stage, *region, own, begin, bytes, out); !status.ok()) return status;
  }
  return {};
}

}  // namespace plait::python
