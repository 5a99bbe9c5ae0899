#include <algorithm>
#include <cmath>
#include <numeric>

#include "observe/bench_gmm.h"

namespace plait {
namespace {

constexpr int64_t weight_budget_bytes = int64_t{64} << 20;  // beyond the caches, and quick to fill
constexpr int64_t most_rows = 4096;
constexpr int64_t most_experts = 64;

int64_t experts_within_budget(int64_t hidden, int64_t intermediate, int64_t rows, DType dtype) {
  int64_t by_weights = weight_budget_bytes / (hidden * 2 * intermediate * size_of(dtype));
  return std::clamp(std::min(by_weights, most_rows / rows), int64_t{1}, most_experts);
}

}  // namespace

std::vector<GmmCase> default_gmm_cases() {
  std::vector<GmmCase> cases;
  for (DType dtype : {DType::bf16, DType::f32}) {
    for (auto [hidden, intermediate] : {std::pair<int64_t, int64_t>{2048, 512}, {1024, 512}, {4096, 1536}}) {
      for (int64_t rows : {1, 4, 8, 32, 128, 256}) {
        cases.push_back({hidden, intermediate, rows, experts_within_budget(hidden, intermediate, rows, dtype), dtype, false, 0});
      }
    }
  }
  return cases;
}

std::vector<int64_t> gmm_case_rows(const GmmCase& shape) {
  auto num_experts = static_cast<size_t>(shape.num_experts);
  std::vector<int64_t> rows(num_experts, shape.rows_per_expert);
  if (shape.skew <= 0) return rows;
  int64_t total = shape.rows_per_expert * shape.num_experts;
  std::vector<double> share(num_experts);
  for (size_t i = 0; i < num_experts; ++i) share[i] = std::pow(static_cast<double>(i + 1), -shape.skew);
  double sum = std::accumulate(share.begin(), share.end(), 0.0);
  for (size_t i = 0; i < num_experts; ++i) rows[i] = static_cast<int64_t>(static_cast<double>(total) * share[i] / sum);
  rows[0] += total - std::accumulate(rows.begin(), rows.end(), int64_t{0});
  uint64_t state = 7;
  for (size_t i = num_experts - 1; i > 0; --i) {  // Fisher-Yates with a small fixed generator: the largest group is not always the first
    state = state * 6364136223846793005U + 1442695040888963407U;
    std::swap(rows[i], rows[(state >> 33) % (i + 1)]);
  }
  return rows;
}

}  // namespace plait
