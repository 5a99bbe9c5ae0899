#pragma once
/// Which experts one token takes: group limit, then top-k. docs/operators.md section 1.

#include <cstdint>
#include <vector>

#include "plait/router.h"

namespace plait {

/// Serves one thread; its memory is reused from token to token.
class ExpertChooser {
 public:
  explicit ExpertChooser(const RouterConfig& config);

  /// `values` (E): the choice values, none of them NaN. Writes the k best ids of the groups that take part, in descending order of
  /// value, ties (-0 equals +0) to the smaller id. Experts of other groups are never looked at, so no masking value can beat a real one.
  void choose(const float* values, int32_t* ids);

 private:
  float group_value(const float* group) const;
  void choose_groups(const float* values);
  void choose_among(const float* values, int64_t n, int64_t k, int32_t* chosen);
  void take_ranked(const float* values, int64_t num_candidates, int64_t k, int32_t* chosen) const;
  void take_sorted(const float* values, int64_t num_candidates, int64_t k, int32_t* chosen);

  const RouterConfig& config_;
  int64_t group_size_;
  std::vector<float> group_values_, group_members_;  ///< empty without a group limit
  std::vector<int32_t> groups_;                      ///< those that take part
  std::vector<int32_t> candidates_;
};

}  // namespace plait
