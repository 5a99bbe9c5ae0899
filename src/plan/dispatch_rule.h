#pragma once
/// What fusing the exchange with the matmuls saves and costs, by a rule. Pure functions.

#include <cstdint>

namespace plait::plan {

/// One direction of a layer step on ranks with common memory.
struct ExchangeCase {
  int64_t tokens = 0;  ///< of one rank
  int64_t top_k = 1;
  int64_t experts_per_rank = 1;  ///< of these, about min(e, tokens * k) have rows
  int64_t row_bytes = 0;
};

/// Microseconds beyond the computation that both ways share.
/// Unfused: each entry's row is permuted, copied to its expert and copied home. Fused: each token's row is copied once, and every expert's
/// block is scheduled by itself.
/// Example: 16 tokens, k 8, 32 experts, rows of 1024 bytes: unfused 66 us, fused 53 us.
double unfused_cost_us(const ExchangeCase& c);
double fused_cost_us(const ExchangeCase& c);

}  // namespace plait::plan
