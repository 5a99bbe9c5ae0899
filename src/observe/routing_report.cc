#include "observe/routing_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace plait {

std::vector<int64_t> tokens_per_expert(const CountsMatrix& counts) {
  std::vector<int64_t> sums(static_cast<size_t>(counts.placement.num_experts), 0);
  for (int rank = 0; rank < counts.placement.num_ranks; ++rank) {
    for (int64_t g = 0; g < counts.placement.num_experts; ++g) sums[static_cast<size_t>(g)] += counts.at(rank, g);
  }
  return sums;
}

RoutingReport routing_report(std::vector<int64_t> tokens) {
  RoutingReport report;
  auto total = static_cast<double>(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}));
  report.empty_experts = std::count(tokens.begin(), tokens.end(), 0);
  if (total > 0) {
    auto largest = static_cast<double>(*std::max_element(tokens.begin(), tokens.end()));
    report.max_over_mean = largest * static_cast<double>(tokens.size()) / total;
    for (int64_t n : tokens) {
      double share = static_cast<double>(n) / total;
      if (n > 0) report.entropy -= share * std::log(share);
    }
  }
  report.tokens_per_expert = std::move(tokens);
  return report;
}

std::string describe(const RoutingReport& report) {
  size_t num_experts = report.tokens_per_expert.size();
  return fmt::format("max/mean {:.2f}, entropy {:.2f} of {:.2f}, {} of {} experts empty", report.max_over_mean, report.entropy,
                     std::log(static_cast<double>(std::max<size_t>(num_experts, 1))), report.empty_experts, num_experts);
}

}  // namespace plait
