#include "moe/gathered_tokens.h"

#include <atomic>
#include <cstring>

#include "kernels/kernel_set.h"
#include "ops/dense_rows.h"

namespace plait::moe {
namespace {

/// One thread's memory for one parcel at a time.
struct ParcelSum {
  RowSum steps;
  std::vector<TreeTerm> terms;
};

}  // namespace

void GatheredTokens::add_home(const RoutingPlan& plan, std::span<const int32_t> ids, std::span<const float> weights, int64_t sum_entries) {
  const ExpertPlacement& place = plan.placement();
  const int source = static_cast<int>(homes.size());
  HomeTokens home{{ids.begin(), ids.end()}, {weights.begin(), weights.end()}, {}, ParcelPlan({ids, weights, top_k}, place, sum_entries, combine)};
  std::vector<int64_t> next;  // the coming row of each local expert
  for (int64_t j = 0; j < place.experts_per_rank(); ++j) next.push_back(plan.recv_begin(plan.rank(), j, source));
  for (const int32_t expert : ids) {
    const bool here = expert < place.num_experts && place.owner(expert) == plan.rank();
    home.rows.push_back(here ? static_cast<int32_t>(next[static_cast<size_t>(place.local(expert))]++) : -1);
  }
  first_token.push_back(first_token.back() + static_cast<int64_t>(ids.size()) / top_k);
  homes.push_back(std::move(home));
}

void GatheredTokens::sort_entries(std::span<int32_t> tokens, std::span<float> weights) const {
  for (size_t s = 0; s < homes.size(); ++s) {
    const HomeTokens& home = homes[s];
    for (size_t i = 0; i < home.rows.size(); ++i) {
      if (home.rows[i] < 0) continue;
      tokens[static_cast<size_t>(home.rows[i])] = static_cast<int32_t>(first_token[s] + static_cast<int64_t>(i) / top_k);
      weights[static_cast<size_t>(home.rows[i])] = home.weights[i];
    }
  }
}

SectionLayout parcel_layout(const LayerCall& call, int64_t num_entries, const ParcelPlan& parcels) {
  const int64_t hidden = call.config.hidden;
  const int64_t bytes[] = {num_entries * int64_t{sizeof(float)}, parcels.num_rows() * hidden * size_of(call.config.dtype),
                           parcels.num_sums() * hidden * int64_t{sizeof(float)}};
  return SectionLayout::of_bytes(bytes);
}

int64_t write_parcels(const LayerCall& call, const GatheredTokens& tokens, const RoutingPlan& plan, const ConstTensorView& rows, bool weighted,
                      std::span<std::byte* const> homes) {
  const Context& context = call.context;
  const int64_t hidden = call.config.hidden, row_bytes = hidden * size_of(rows.dtype), num_experts = plan.placement().num_experts;
  std::vector<ParcelSum> threads(static_cast<size_t>(context.threads()));
  std::atomic<int64_t> num_sent{0};
  auto write = [&](const HomeTokens& home, const SectionLayout& layout, const Parcel& parcel, std::byte* to, ParcelSum& sum) {
    const std::span<const int32_t> entries = home.parcels.entries(parcel);
    auto row_of = [&](int32_t entry) { return rows.at(home.rows[static_cast<size_t>(entry)]); };
    if (!parcel.is_sum) {
      std::memcpy(to + layout.offset(row_section) + parcel.place * row_bytes, row_of(entries.front()), static_cast<size_t>(row_bytes));
      return;
    }
    sum.terms.clear();
    for (const int32_t entry : entries) {
      const auto i = static_cast<size_t>(entry);
      sum.terms.push_back({.expert = home.ids[i], .row = row_of(entry), .type = rows.dtype, .weighted = weighted, .weight = home.weights[i]});
    }
    sum.steps.clear();
    sum.steps.add_tree(sum.terms, num_experts);
    sum.steps.sum(*context.kernels().elementwise, DType::f32, to + layout.offset(sum_section) + parcel.place * hidden * int64_t{sizeof(float)},
                  hidden);
  };
  for (int i = 0; i < call.group.size(); ++i) {
    const int rank = (plan.rank() + i) % call.group.size();
    const HomeTokens& home = tokens.homes[static_cast<size_t>(rank)];
    const SectionLayout layout = parcel_layout(call, plan.num_send_rows(rank), home.parcels);
    for_blocks(context, home.parcels.num_tokens(), tokens.top_k * row_bytes, [&](int64_t begin, int64_t end, int worker) {
      int64_t sent = 0;
      for (int64_t t = begin; t < end; ++t) {
        for (const Parcel& parcel : home.parcels.of_token(t)) {
          if (parcel.owner != plan.rank()) continue;
          write(home, layout, parcel, homes[static_cast<size_t>(rank)], threads[static_cast<size_t>(worker)]);
          ++sent;
        }
      }
      if (rank != plan.rank()) num_sent += sent;
    });
  }
  return num_sent;
}

}  // namespace plait::moe
