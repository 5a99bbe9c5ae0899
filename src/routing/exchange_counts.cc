#include <fmt/format.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "plait/counters.h"
#include "plait/routing.h"
#include "routing/signature.h"

namespace plait {
namespace {

/// Payloads are rounded up to this, so that ranks which disagree about the number of experts usually still exchange payloads of one size
/// and get the error that names the field.
constexpr int64_t payload_granule_bytes = 4096;

using Notes = decltype(CallSignature::notes);

/// What one rank says: its signature, its notes, its rows per expert (E), and the rows it expects (E, rank major; zeros where it passed none).
struct PayloadLayout {
  int64_t num_experts;
  int64_t notes_offset() const { return static_cast<int64_t>(sizeof(SignatureBlock)); }
  int64_t counts_offset() const { return notes_offset() + static_cast<int64_t>(sizeof(Notes)); }
  int64_t expected_offset() const { return counts_offset() + num_experts * 8; }
  int64_t bytes() const {
    const int64_t used = expected_offset() + num_experts * 8;
    return (used + payload_granule_bytes - 1) / payload_granule_bytes * payload_granule_bytes;
  }
};

void append(std::vector<std::byte>& payload, int64_t offset, std::span<const std::byte> bytes) {
  if (!bytes.empty()) std::memcpy(payload.data() + offset, bytes.data(), bytes.size());
}

std::vector<int64_t> numbers(std::span<const std::byte> payload, int64_t offset, int64_t count) {
  std::vector<int64_t> values(static_cast<size_t>(count));
  std::memcpy(values.data(), payload.data() + offset, static_cast<size_t>(count) * 8);
  return values;
}

Status in_stage(Status status, int rank, int64_t expert) {
  return std::move(status).at_rank(rank).at_expert(static_cast<int>(expert)).in_stage(name(Stage::exchange_counts));
}

Status check_not_negative(const CountsMatrix& matrix) {
  for (int source = 0; source < matrix.placement.num_ranks; ++source) {
    for (int64_t expert = 0; expert < matrix.placement.num_experts; ++expert) {
      if (matrix.at(source, expert) >= 0) continue;
      return in_stage(Status::invalid_argument(fmt::format("rank {} announces {} rows for expert {}: a count must be at least 0", source,
                                                           matrix.at(source, expert), expert)),
                      source, expert);
    }
  }
  return {};
}

std::string disagreement(int64_t expert, int sender, int64_t sent, int receiver, int64_t awaited) {
  return fmt::format("rank {} sends {} rows for expert {} to rank {}, which expects {}: send counts and receive counts must agree", sender, sent,
                     expert, receiver, awaited);
}

/// What s says it has must equal what the owner says about it. `expected[d]` is rank d's list, rank major.
Status check_expected(const CountsMatrix& matrix, const std::vector<std::vector<int64_t>>& expected, bool homeward) {
  const ExpertPlacement& place = matrix.placement;
  for (int source = 0; source < place.num_ranks; ++source) {
    for (int64_t expert = 0; expert < place.num_experts; ++expert) {
      const int owner = place.owner(expert);
      const int64_t awaited = expected[static_cast<size_t>(owner)][static_cast<size_t>(source * place.experts_per_rank() + place.local(expert))];
      if (awaited == matrix.at(source, expert)) continue;
      const int64_t had = matrix.at(source, expert);
      const std::string text = homeward ? disagreement(expert, owner, awaited, source, had) : disagreement(expert, source, had, owner, awaited);
      return in_stage(Status::invalid_argument(text), source, expert);
    }
  }
  return {};
}

Status check_lengths(const ExpertPlacement& placement, std::span<const int64_t> local_counts, std::span<const int64_t> expected_recv, int rank) {
  const auto length = static_cast<size_t>(placement.num_experts);
  if (local_counts.size() == length && (expected_recv.empty() || expected_recv.size() == length)) return {};
  return Status::invalid_argument(fmt::format("{} counts to send and {} to receive for {} experts: one count per expert is needed",
                                              local_counts.size(), expected_recv.size(), placement.num_experts))
      .at_rank(rank)
      .in_stage(name(Stage::exchange_counts));
}

std::vector<std::byte> make_payload(const PayloadLayout& layout, const CallSignature& signature, std::span<const int64_t> local_counts,
                                    std::span<const int64_t> expected_recv) {
  std::vector<std::byte> payload(static_cast<size_t>(layout.bytes()));
  SignatureBlock block = pack(signature);
  block.num_expected = static_cast<int64_t>(expected_recv.size());
  append(payload, 0, std::as_bytes(std::span(&block, 1)));
  append(payload, layout.notes_offset(), std::as_bytes(std::span(signature.notes)));
  append(payload, layout.counts_offset(), std::as_bytes(local_counts));
  append(payload, layout.expected_offset(), std::as_bytes(expected_recv));
  return payload;
}

Status check_signatures(const Exchange& exchange, int num_ranks) {
  std::vector<SignatureBlock> blocks(static_cast<size_t>(num_ranks));
  for (int rank = 0; rank < num_ranks; ++rank) std::memcpy(&blocks[static_cast<size_t>(rank)], exchange.payload(rank).data(), sizeof(SignatureBlock));
  return compare_signatures(blocks);
}

}  // namespace

Result<CountsMatrix> exchange_counts(Group& group, const ExpertPlacement& placement, const CallSignature& signature,
                                     std::span<const int64_t> local_counts, std::span<const int64_t> expected_recv, std::span<const Region> publish,
                                     PublishedViews* views) {
  PLAIT_RETURN_IF_ERROR(placement.validate());
  PLAIT_RETURN_IF_ERROR(check_lengths(placement, local_counts, expected_recv, group.rank()));
  const PayloadLayout layout{placement.num_experts};
  const std::vector<std::byte> payload = make_payload(layout, signature, local_counts, expected_recv);
  PLAIT_ASSIGN_OR_RETURN(Exchange exchange, group.exchange(name(Stage::exchange_counts), payload, publish));
  PLAIT_RETURN_IF_ERROR(check_signatures(exchange, group.size()));

  CountsMatrix matrix{placement, {}, std::vector<Notes>(static_cast<size_t>(group.size()))};
  std::vector<std::vector<int64_t>> expected;
  for (int rank = 0; rank < group.size(); ++rank) {
    std::memcpy(matrix.notes[static_cast<size_t>(rank)].data(), exchange.payload(rank).data() + layout.notes_offset(), sizeof(Notes));
    const std::vector<int64_t> row = numbers(exchange.payload(rank), layout.counts_offset(), placement.num_experts);
    matrix.counts.insert(matrix.counts.end(), row.begin(), row.end());
    if (!expected_recv.empty()) expected.push_back(numbers(exchange.payload(rank), layout.expected_offset(), placement.num_experts));
  }
  PLAIT_RETURN_IF_ERROR(check_not_negative(matrix));
  if (!expected.empty()) PLAIT_RETURN_IF_ERROR(check_expected(matrix, expected, signature.homeward));
  if (views != nullptr) *views = std::move(exchange.regions);
  return matrix;
}

}  // namespace plait
