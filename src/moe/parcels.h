#pragma once
/// How results of a token's experts travel home in as few rows as possible without changing a bit. docs/numerics.md section 4.

#include <cstdint>
#include <span>
#include <vector>

#include "plait/layer.h"
#include "plait/routing.h"
#include "plait/tensor.h"

namespace plait::moe {

/// One row on its way from an expert's rank to the home rank: the float32 sum of a node of the token's tree all of whose present experts
/// live with `owner`, or one entry's row.
struct Parcel {
  int32_t owner;
  int32_t expert;  ///< any of the node's
  bool is_sum;
  int64_t place;        ///< among the home rank's sums, or among its rows
  int64_t first_entry;  ///< of its entries in ParcelPlan::entries
  int32_t num_entries;
};

/// The parcels of all tokens of one home rank: the same on every rank that has the tokens' ids and weights.
class ParcelPlan {
 public:
  struct Tokens {
    std::span<const int32_t> ids;    ///< (T,k); ids >= E take no part
    std::span<const float> weights;  ///< (T,k); a weight of 0 makes its entry absent
    int64_t top_k;
  };
  ParcelPlan() = default;
  /// A node of at least `sum_entries` present entries travels as its sum. Combine::reduced takes all of a token's entries at a rank for a node.
  ParcelPlan(const Tokens& tokens, const ExpertPlacement& placement, int64_t sum_entries, Combine combine = Combine::exact);

  int64_t num_tokens() const { return static_cast<int64_t>(begins_.size()) - 1; }
  /// In ascending order of experts.
  std::span<const Parcel> of_token(int64_t token) const {
    return std::span(parcels_).subspan(begins_[static_cast<size_t>(token)],
                                       begins_[static_cast<size_t>(token) + 1] - begins_[static_cast<size_t>(token)]);
  }
  /// Flat entries t*k + slot, experts ascending, slots ascending where an expert occurs twice.
  std::span<const int32_t> entries(const Parcel& parcel) const {
    return std::span(entries_).subspan(static_cast<size_t>(parcel.first_entry), static_cast<size_t>(parcel.num_entries));
  }
  int64_t num_rows() const { return num_rows_; }
  int64_t num_sums() const { return num_sums_; }

 private:
  struct Present;
  struct Node;
  void add_node(const ExpertPlacement& placement, std::span<const Present> present, const Node& node, int64_t sum_entries);
  void add_ranks(const ExpertPlacement& placement, std::span<const Present> present, int64_t sum_entries);
  void add_parcels(int owner, std::span<const Present> present, int64_t sum_entries);
  void add_parcel(int owner, std::span<const Present> present, bool is_sum);

  std::vector<size_t> begins_{0};
  std::vector<Parcel> parcels_;
  std::vector<int32_t> entries_;
  int64_t num_rows_ = 0, num_sums_ = 0;
};

/// From how many entries on a float32 sum is less than their rows: 3 for types of two bytes, 2 for float32.
constexpr int64_t least_sum_entries(DType dtype) { return int64_t{sizeof(float)} / size_of(dtype) + 1; }

}  // namespace plait::moe
