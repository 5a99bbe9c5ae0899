#include "moe/parcels.h"

#include <algorithm>

#include "kernels/elementwise.h"

namespace plait::moe {

struct ParcelPlan::Present {
  int32_t expert;
  int32_t entry;
};
struct ParcelPlan::Node {
  int64_t low, high;
};

ParcelPlan::ParcelPlan(const Tokens& tokens, const ExpertPlacement& placement, int64_t sum_entries, Combine combine) {
  const int64_t num_tokens = static_cast<int64_t>(tokens.ids.size()) / tokens.top_k;
  std::vector<Present> present;
  for (int64_t t = 0; t < num_tokens; ++t) {
    present.clear();
    for (int64_t i = t * tokens.top_k; i < (t + 1) * tokens.top_k; ++i) {
      const int32_t expert = tokens.ids[static_cast<size_t>(i)];
      if (expert < placement.num_experts && !kernels::is_absent(tokens.weights[static_cast<size_t>(i)]))
        present.push_back({expert, static_cast<int32_t>(i)});
    }
    std::stable_sort(present.begin(), present.end(), [](const Present& a, const Present& b) { return a.expert < b.expert; });
    if (combine == Combine::reduced) {
      add_ranks(placement, present, sum_entries);
    } else {
      add_node(placement, present, {0, placement.num_experts}, sum_entries);
    }
    begins_.push_back(parcels_.size());
  }
}

/// `present` are the entries in the node's range of experts.
void ParcelPlan::add_node(const ExpertPlacement& placement, std::span<const Present> present, const Node& node, int64_t sum_entries) {
  if (present.empty()) return;
  const int owner = placement.owner(present.front().expert);
  if (owner == placement.owner(present.back().expert)) return add_parcels(owner, present, sum_entries);
  const int64_t middle = node.low + (node.high - node.low) / 2;
  const auto split = std::partition_point(present.begin(), present.end(), [&](const Present& p) { return p.expert < middle; });
  const auto left = static_cast<size_t>(split - present.begin());
  add_node(placement, present.first(left), {node.low, middle}, sum_entries);
  add_node(placement, present.subspan(left), {middle, node.high}, sum_entries);
}

/// The experts of a rank are neighbours.
void ParcelPlan::add_ranks(const ExpertPlacement& placement, std::span<const Present> present, int64_t sum_entries) {
  while (!present.empty()) {
    const int owner = placement.owner(present.front().expert);
    const auto end = std::partition_point(present.begin(), present.end(), [&](const Present& p) { return placement.owner(p.expert) == owner; });
    const auto count = static_cast<size_t>(end - present.begin());
    add_parcels(owner, present.first(count), sum_entries);
    present = present.subspan(count);
  }
}

void ParcelPlan::add_parcels(int owner, std::span<const Present> present, int64_t sum_entries) {
  if (static_cast<int64_t>(present.size()) >= sum_entries) return add_parcel(owner, present, true);
  for (size_t i = 0; i < present.size(); ++i) add_parcel(owner, present.subspan(i, 1), false);
}

void ParcelPlan::add_parcel(int owner, std::span<const Present> present, bool is_sum) {
  int64_t& place = is_sum ? num_sums_ : num_rows_;
  parcels_.push_back({owner, present.front().expert, is_sum, place++, static_cast<int64_t>(entries_.size()), static_cast<int32_t>(present.size())});
  for (const Present& p : present) entries_.push_back(p.entry);
}

}  // namespace plait::moe
