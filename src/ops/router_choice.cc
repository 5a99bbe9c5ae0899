#include "ops/router_choice.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace plait {
namespace {

constexpr float lowest = -std::numeric_limits<float>::infinity();

/// A value that at least k of the n values reach, close below the k-th greatest: the k-th greatest of `lanes` interleaved maxima, or
/// -inf where there are fewer lanes than k.
template <int64_t lanes>
float threshold_of(const float* values, int64_t n, int64_t k) {
  std::array<float, lanes> most;
  most.fill(lowest);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int64_t l = 0; l < lanes; ++l) most[l] = values[i + l] > most[l] ? values[i + l] : most[l];
  }
  for (int64_t l = 0; i < n; ++i, ++l) most[l] = std::max(most[l], values[i]);
  std::array<int32_t, lanes> num_reaching{};
  for (float m : most) {
    for (int64_t l = 0; l < lanes; ++l) num_reaching[l] += m >= most[l] ? 1 : 0;
  }
  float threshold = lowest;
  for (int64_t l = 0; l < lanes; ++l) {
    if (num_reaching[l] >= k) threshold = std::max(threshold, most[l]);
  }
  return threshold;
}
/// Above this, the comparison of all pairs is no longer cheaper than sorting (ties can make every expert a candidate).
constexpr int64_t max_ranked = 48;

/// The two greatest of a group; the second is -inf for a group of one.
std::pair<float, float> two_best(const float* group, int64_t n) {
  constexpr int64_t lanes = 4;  // plain loops over lanes become vector code
  float best[lanes], second[lanes];
  std::fill_n(best, lanes, lowest);
  std::fill_n(second, lanes, lowest);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int64_t l = 0; l < lanes; ++l) {
      float v = group[i + l];
      float lesser = v > best[l] ? best[l] : v;
      best[l] = v > best[l] ? v : best[l];
      second[l] = lesser > second[l] ? lesser : second[l];
    }
  }
  std::pair<float, float> two(lowest, lowest);
  auto offer = [&two](float v) {
    two.second = std::max(two.second, std::min(two.first, v));
    two.first = std::max(two.first, v);
  };
  for (int64_t l = 0; l < lanes; ++l) {
    offer(best[l]);
    offer(second[l]);
  }
  for (; i < n; ++i) offer(group[i]);
  return two;
}

}  // namespace

ExpertChooser::ExpertChooser(const RouterConfig& config) : config_(config), group_size_(config.num_experts / config.n_group) {
  candidates_.resize(static_cast<size_t>(config.num_experts));
  if (config.topk_group == config.n_group) return;
  group_values_.resize(static_cast<size_t>(config.n_group));
  groups_.resize(static_cast<size_t>(config.topk_group));
  group_members_.resize(static_cast<size_t>(config.topk_group * group_size_));
}

/// Descending value, ties to the smaller index: a strict order, so that every method gives the same list.
void ExpertChooser::choose_among(const float* values, int64_t n, int64_t k, int32_t* chosen) {
  float threshold = k <= 8 ? threshold_of<16>(values, n, k) : k <= 16 ? threshold_of<32>(values, n, k) : threshold_of<64>(values, n, k);
  int32_t* candidates = candidates_.data();
  int64_t num_candidates = 0;
  for (int64_t i = 0; i < n; ++i) {  // no branch: which values pass cannot be predicted
    candidates[num_candidates] = static_cast<int32_t>(i);
    num_candidates += values[i] >= threshold ? 1 : 0;
  }
  num_candidates > max_ranked ? take_sorted(values, num_candidates, k, chosen) : take_ranked(values, num_candidates, k, chosen);
}

/// The place of every candidate is the number of those that come before it.
void ExpertChooser::take_ranked(const float* values, int64_t num_candidates, int64_t k, int32_t* chosen) const {
  std::array<float, max_ranked> value;
  std::array<int32_t, max_ranked> rank{};
  for (int64_t i = 0; i < num_candidates; ++i) {
    value[i] = values[candidates_[i]];
    for (int64_t j = 0; j < i; ++j) {
      bool earlier_first = value[j] >= value[i];
      rank[i] += earlier_first ? 1 : 0;
      rank[j] += earlier_first ? 0 : 1;
    }
  }
  for (int64_t i = 0; i < num_candidates; ++i) {
    if (rank[i] < k) chosen[rank[i]] = candidates_[i];
  }
}

void ExpertChooser::take_sorted(const float* values, int64_t num_candidates, int64_t k, int32_t* chosen) {
  auto better = [values](int32_t a, int32_t b) { return values[a] != values[b] ? values[a] > values[b] : a < b; };
  auto begin = candidates_.begin();
  std::partial_sort(begin, begin + k, begin + num_candidates, better);
  std::copy_n(begin, k, chosen);
}

float ExpertChooser::group_value(const float* group) const {
  auto [best, second] = two_best(group, group_size_);
  bool sum_of_two = config_.score == ScoreFunction::sigmoid && group_size_ > 1;
  return sum_of_two ? best + second : best;
}

/// groups_ = those that take part, ascending.
void ExpertChooser::choose_groups(const float* values) {
  for (int64_t g = 0; g < config_.n_group; ++g) group_values_[static_cast<size_t>(g)] = group_value(values + g * group_size_);
  choose_among(group_values_.data(), config_.n_group, config_.topk_group, groups_.data());
  std::sort(groups_.begin(), groups_.end());
}

void ExpertChooser::choose(const float* values, int32_t* ids) {
  if (groups_.empty()) return choose_among(values, config_.num_experts, config_.top_k, ids);
  choose_groups(values);
  float* members = group_members_.data();
  for (int32_t group : groups_) members = std::copy_n(values + group * group_size_, group_size_, members);
  choose_among(group_members_.data(), static_cast<int64_t>(group_members_.size()), config_.top_k, ids);
  for (int64_t slot = 0; slot < config_.top_k; ++slot) {
    int64_t place = ids[slot];
    ids[slot] = static_cast<int32_t>(groups_[static_cast<size_t>(place / group_size_)] * group_size_ + place % group_size_);
  }
}

}  // namespace plait
