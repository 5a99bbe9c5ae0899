#pragma once
/// All ranks' tokens and routing on one rank: what the dispatcher allgather works on.

#include <cstdint>
#include <span>
#include <vector>

#include "moe/call.h"
#include "moe/parcels.h"
#include "ops/weighted_tree.h"
#include "routing/row_access.h"
#include "routing/row_blocks.h"

namespace plait::moe {

/// One rank's tokens as this rank sees them.
struct HomeTokens {
  std::vector<int32_t> ids;    ///< (T,k)
  std::vector<float> weights;  ///< (T,k)
  std::vector<int32_t> rows;   ///< per flat entry: its row in this rank's expert-major order; -1: another rank has the expert
  ParcelPlan parcels;
};

struct GatheredTokens {
  int64_t top_k = 1;
  Combine combine = Combine::exact;
  std::vector<int64_t> first_token{0};  ///< of each rank in the gathered rows, and their number
  std::vector<HomeTokens> homes;
  Tensor x;  ///< (all tokens, H); undefined with recompute and in a group of one

  /// Appends a rank's routing. `plan` and `sum_entries` as in ParcelPlan.
  void add_home(const RoutingPlan& plan, std::span<const int32_t> ids, std::span<const float> weights, int64_t sum_entries);
  int64_t num_tokens(int rank) const { return first_token[static_cast<size_t>(rank) + 1] - first_token[static_cast<size_t>(rank)]; }

  /// Expert major: the token row in the gathered rows and the weight of each entry.
  void sort_entries(std::span<int32_t> tokens, std::span<float> weights) const;
};

/// Where a home rank wants its parcels, and in backward its entries' dweights: [dweight per entry | rows | sums].
SectionLayout parcel_layout(const LayerCall& call, int64_t num_entries, const ParcelPlan& parcels);
enum ParcelSection : size_t { dweight_section, row_section, sum_section };

/// Writes what this rank has for every home rank's tokens into the homes' memory (`homes[s]`: where it begins). `rows` (A,H), expert major;
/// `weighted`: forward. Returns how many parcels left this rank.
int64_t write_parcels(const LayerCall& call, const GatheredTokens& tokens, const RoutingPlan& plan, const ConstTensorView& rows, bool weighted,
                      std::span<std::byte* const> homes);

}  // namespace plait::moe
