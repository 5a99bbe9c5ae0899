#include "plan/dispatch_rule.h"

#include <algorithm>

namespace plait::plan {
namespace {

// Measured on a Zen 4 core: rows are copied at 6 GB/s; a block costs the scheduler a microsecond; lists of addresses, regions and signals cost
// the rest. The choice is not sensitive to them: near the break-even both ways take the same time.
constexpr double copy_bytes_per_us = 6000;
constexpr double block_us = 1;
constexpr double call_us = 18;
constexpr int copies = 3;

}  // namespace

double unfused_cost_us(const ExchangeCase& c) { return static_cast<double>(copies * c.tokens * c.top_k * c.row_bytes) / copy_bytes_per_us; }

double fused_cost_us(const ExchangeCase& c) {
  const int64_t blocks = std::min(c.experts_per_rank, c.tokens * c.top_k);
  return call_us + block_us * static_cast<double>(blocks) + static_cast<double>(c.tokens * c.row_bytes) / copy_bytes_per_us;
}

}  // namespace plait::plan
