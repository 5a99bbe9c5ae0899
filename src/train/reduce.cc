#include "train/reduce.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/status_macros.h"
#include "base/thread_pool.h"

namespace plait::train {
namespace {

constexpr int64_t float_bytes = sizeof(float);

/// A slice of `count` values and the part of it that each rank sums.
struct Slice {
  int64_t count;
  int num_ranks;
  int64_t begin(int rank) const { return count * rank / num_ranks; }
  int64_t size(int rank) const { return begin(rank + 1) - begin(rank); }
};

/// sums[i] = terms[0][i] + terms[1][i] + ..., terms of `size` values one after another.
void sum_terms(const Context& context, const float* terms, int num_terms, int64_t size, float* sums) {
  constexpr int64_t block = 4096;
  context.pool().parallel_for((size + block - 1) / block, [&](int64_t task, int) {
    int64_t begin = task * block, end = std::min(size, begin + block);
    std::copy(terms + begin, terms + end, sums + begin);
    for (int r = 1; r < num_terms; ++r) {
      const float* term = terms + r * size;
      for (int64_t i = begin; i < end; ++i) sums[i] += term[i];
    }
  });
}

struct Reduction {
  const Context& context;
  Group& group;
  std::string_view stage;
  Region region;       // [ a slice of values | this rank's sums ]
  int64_t sums_begin;  // bytes
  std::vector<RegionView> regions;
  Buffer terms;

  /// This rank's part of everybody's slice, rank after rank, into `terms`.
  Status fetch_terms(const Slice& slice) {
    int rank = group.rank();
    std::vector<SendBlock> send;
    std::vector<RecvBlock> recv;
    int64_t bytes = slice.size(rank) * float_bytes;
    for (int peer = 0; peer < group.size(); ++peer) {
      send.push_back({peer, slice.begin(peer) * float_bytes, slice.size(peer) * float_bytes});
      recv.push_back({peer, slice.begin(rank) * float_bytes, bytes, terms.get() + peer * bytes});
    }
    return group.all_to_all_v(context, stage, region, regions, send, recv);
  }

  /// Everybody's sums into the slice.
  Status fetch_sums(const Slice& slice, float* values) {
    std::vector<SendBlock> send;
    std::vector<RecvBlock> recv;
    for (int peer = 0; peer < group.size(); ++peer) {
      send.push_back({peer, sums_begin, slice.size(group.rank()) * float_bytes});
      recv.push_back({peer, sums_begin, slice.size(peer) * float_bytes, reinterpret_cast<std::byte*>(values + slice.begin(peer))});
    }
    return group.all_to_all_v(context, stage, region, regions, send, recv);
  }

  Status reduce(const Slice& slice, float* values) {
    std::memcpy(region.data(), values, static_cast<size_t>(slice.count * float_bytes));
    PLAIT_RETURN_IF_ERROR(group.barrier(stage));  // all slices are published, and all sums of the slice before have been fetched
    PLAIT_RETURN_IF_ERROR(fetch_terms(slice));
    auto* sums = reinterpret_cast<float*>(region.data() + sums_begin);
    sum_terms(context, reinterpret_cast<const float*>(terms.get()), group.size(), slice.size(group.rank()), sums);
    PLAIT_RETURN_IF_ERROR(group.barrier(stage));
    return fetch_sums(slice, values);
  }
};

}  // namespace

Status all_reduce_in_rank_order(const Context& context, Group& group, std::span<float> values, std::string_view stage) {
  auto n = static_cast<int64_t>(values.size());
  if (group.size() == 1 || n == 0) return {};
  int64_t slice_size = std::min(n, reduce_slice);
  int64_t part_size = (slice_size + group.size() - 1) / group.size();
  Reduction reduction{context, group, stage, {}, slice_size * float_bytes, {}, {}};
  PLAIT_ASSIGN_OR_RETURN(reduction.region, group.allocate((slice_size + part_size) * float_bytes));
  PLAIT_ASSIGN_OR_RETURN(reduction.terms, context.scratch(group.size() * part_size * float_bytes));
  PLAIT_ASSIGN_OR_RETURN(Exchange exchange, group.exchange(stage, std::as_bytes(std::span(&n, 1)), {&reduction.region, 1}));
  for (int peer = 0; peer < group.size(); ++peer) {
    int64_t other = 0;
    std::memcpy(&other, exchange.payload(peer).data(), sizeof other);
    if (other != n) {
      return Status::invalid_argument("a reduction needs the same number of values on all ranks: " + std::to_string(n) + " here, " +
                                      std::to_string(other) + " on rank " + std::to_string(peer))
          .at_rank(peer)
          .in_stage(stage);
    }
  }
  reduction.regions = std::move(exchange.regions[0]);
  for (int64_t begin = 0; begin < n; begin += slice_size) {
    PLAIT_RETURN_IF_ERROR(reduction.reduce({std::min(slice_size, n - begin), group.size()}, values.data() + begin));
  }
  return {};
}

}  // namespace plait::train
