#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "ops/dense_rows.h"
#include "ops/permute_entries.h"
#include "plait/permute.h"

namespace plait {
namespace {

/// Stable counting sort of entries by expert: position[i] = the rank of entry i, or -1 where expert_of(i) is -1. The entries are cut into
/// chunks, one histogram each; how many chunks does not change the result.
template <typename ExpertOf>
std::vector<int64_t> counting_sort(const Context& context, int64_t num_experts, ExpertOf expert_of, const TensorView& position) {
  constexpr int64_t min_chunk = 4096;  // below that a second thread does not pay
  int64_t num_entries = position.shape[0];
  int64_t num_chunks = std::clamp<int64_t>(num_entries / min_chunk, 1, context.threads());
  int64_t chunk = (num_entries + num_chunks - 1) / num_chunks;
  std::vector<int64_t> next(static_cast<size_t>(num_chunks * num_experts));  // per chunk and expert: first its count, then its next rank
  auto next_of = [&](int64_t c) { return next.data() + c * num_experts; };

  context.pool().parallel_for(num_chunks, [&](int64_t c, int) {
    for (int64_t i = c * chunk; i < std::min(num_entries, (c + 1) * chunk); ++i) {
      if (int64_t expert = expert_of(i); expert >= 0) ++next_of(c)[expert];
    }
  });
  std::vector<int64_t> counts(static_cast<size_t>(num_experts));
  int64_t rank = 0;
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    int64_t first = rank;
    for (int64_t c = 0; c < num_chunks; ++c) rank += std::exchange(next_of(c)[expert], rank);
    counts[static_cast<size_t>(expert)] = rank - first;
  }
  auto* out = position.as<int32_t>();
  context.pool().parallel_for(num_chunks, [&](int64_t c, int) {
    for (int64_t i = c * chunk; i < std::min(num_entries, (c + 1) * chunk); ++i) {
      int64_t expert = expert_of(i);
      out[i * position.strides[0]] = expert < 0 ? -1 : static_cast<int32_t>(next_of(c)[expert]++);
    }
  });
  return counts;
}

Status id_error(const ConstTensorView& ids, int64_t entry, int64_t num_experts, bool sentinel, int rank) {
  int64_t token = entry / ids.shape[1], slot = entry % ids.shape[1];
  std::string where = rank >= 0 ? fmt::format(" on rank {}", rank) : "";
  std::string rule = sentinel ? fmt::format("it must not be negative (ids from {} on, the number of experts, take no part)", num_experts)
                              : fmt::format("it must be in [0, {}), the number of experts", num_experts);
  return Status::invalid_argument(fmt::format("expert id of token {}, slot {}{} is {}; {}", token, slot, where, int_at(ids, token, slot), rule))
      .at_rank(rank);
}

}  // namespace

Result<std::vector<int64_t>> sort_by_expert(const Context& context, const ConstTensorView& ids, int64_t num_experts, bool sentinel,
                                            const TensorView& position, int rank) {
  if (ids.num_dims != 2 || ids.dtype != DType::i32 || ids.shape[1] < 1) {
    return Status::invalid_argument(fmt::format("sort_by_expert: ids is {}; it must be i32 (tokens, k) with k >= 1", describe(ids)));
  }
  if (num_experts < 1 || num_experts > std::numeric_limits<int32_t>::max()) {
    return Status::invalid_argument(fmt::format("sort_by_expert: {} experts; there must be at least 1, and ids are 32 bit", num_experts));
  }
  int64_t k = ids.shape[1];
  PLAIT_ASSIGN_OR_RETURN(Entries entries, Entries::by_slot("sort_by_expert", position, k));
  if (entries.num_tokens() != ids.shape[0]) {
    return Status::invalid_argument(fmt::format("sort_by_expert: position is {}; ids has {} entries", describe(position), ids.shape[0] * k));
  }
  auto id_of = [&](int64_t i) -> int64_t { return int_at(ids, i / k, i % k); };
  int64_t bad = first_bad(context, entries.count(), [&](int64_t i) { return id_of(i) < 0 || (!sentinel && id_of(i) >= num_experts); });
  if (bad >= 0) return id_error(ids, bad, num_experts, sentinel, rank);
  auto expert_of = [&](int64_t i) { return id_of(i) < num_experts ? id_of(i) : -1; };
  return counting_sort(context, num_experts, expert_of, position);
}

Result<std::vector<int64_t>> sort_by_map(const Context& context, const ConstTensorView& map, const TensorView& position) {
  PLAIT_ASSIGN_OR_RETURN(Entries entries, Entries::by_map("sort_by_map", map, position));
  auto expert_of = [&](int64_t i) { return entries.expert(i); };
  return counting_sort(context, map.shape[1], expert_of, position);
}

int64_t num_kept_rows(int64_t total, int64_t num_out_rows) {
  if (num_out_rows == 0) return total;
  return std::clamp<int64_t>(num_out_rows > 0 ? num_out_rows : total + num_out_rows, 0, total);
}

}  // namespace plait
