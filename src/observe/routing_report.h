#pragma once
/// Where the entries of a batch went.

#include <cstdint>
#include <string>
#include <vector>

#include "observe/run.h"
#include "plait/routing.h"

namespace plait {

/// Column sums of C.
std::vector<int64_t> tokens_per_expert(const CountsMatrix& counts);
/// max_over_mean: entries of the busiest expert over the mean; entropy: of the experts' shares, in nats, at most ln E. 0 for no entries.
RoutingReport routing_report(std::vector<int64_t> tokens_per_expert);
/// "max/mean 1.31, entropy 2.05 of 2.08, 0 of 8 experts empty".
std::string describe(const RoutingReport& report);

}  // namespace plait
