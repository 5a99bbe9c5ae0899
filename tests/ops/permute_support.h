#pragma once
/// Helpers of the permute tests: routings, positions, and the definitions of operators.md section 2 written out plainly.

#include <memory>
#include <vector>

#include "plait/permute.h"
#include "support/test_tensors.h"

namespace plait::test {

std::unique_ptr<Context> permute_context(int threads = 1);
Tensor i32_tensor(std::initializer_list<int64_t> shape, const std::vector<int>& values);
Tensor u8_tensor(std::initializer_list<int64_t> shape, const std::vector<int>& values);

/// Ids (T,k) and what sort_by_expert made of them.
struct Routing {
  int64_t num_tokens, k, num_experts;
  Tensor ids, position;
  std::vector<int64_t> counts;
};
Routing route_by(const Context& context, int64_t num_tokens, int64_t k, int64_t num_experts, const std::vector<int>& ids);
/// Any ids, the same expert twice in a token included.
Routing random_routing(const Context& context, int64_t num_tokens, int64_t k, int64_t num_experts, uint64_t seed);

/// S(low, high) of numerics.md section 4 for one column: `values` are the leaves' products by slot, absent ones left out.
struct OracleTerm {
  int64_t expert;
  float product;
};
float oracle_tree(const std::vector<OracleTerm>& terms, int64_t num_experts);

}  // namespace plait::test
