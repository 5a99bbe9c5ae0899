#include "ops/permute_support.h"

#include <gtest/gtest.h>

#include <optional>

#include "base/float_mode.h"

namespace plait::test {

std::unique_ptr<Context> permute_context(int threads) { return Context::create({.threads = threads, .kernel = ""}).take(); }

Tensor i32_tensor(std::initializer_list<int64_t> shape, const std::vector<int>& values) {
  return tensor_of(DType::i32, shape, std::vector<double>(values.begin(), values.end()));
}
Tensor u8_tensor(std::initializer_list<int64_t> shape, const std::vector<int>& values) {
  return tensor_of(DType::u8, shape, std::vector<double>(values.begin(), values.end()));
}

Routing route_by(const Context& context, int64_t num_tokens, int64_t k, int64_t num_experts, const std::vector<int>& ids) {
  Routing r{num_tokens, k, num_experts, i32_tensor({num_tokens, k}, ids), make_tensor(DType::i32, {num_tokens * k}), {}};
  Result<std::vector<int64_t>> counts = sort_by_expert(context, r.ids, num_experts, false, r.position);
  EXPECT_TRUE(counts.ok()) << counts.status().to_string();
  if (counts.ok()) r.counts = *counts;
  return r;
}

Routing random_routing(const Context& context, int64_t num_tokens, int64_t k, int64_t num_experts, uint64_t seed) {
  Random random(seed);
  std::vector<int> ids(static_cast<size_t>(num_tokens * k));
  for (int& id : ids) id = static_cast<int>(random.below(num_experts));
  return route_by(context, num_tokens, k, num_experts, ids);
}

namespace {

std::optional<float> tree_node(const std::vector<OracleTerm>& terms, int64_t low, int64_t high) {
  if (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    std::optional<float> left = tree_node(terms, low, middle), right = tree_node(terms, middle, high);
    if (left && right) return *left + *right;
    return left ? left : right;
  }
  std::optional<float> leaf;
  for (const OracleTerm& term : terms) {
    if (term.expert == low) leaf = leaf ? *leaf + term.product : term.product;
  }
  return leaf;
}

}  // namespace

float oracle_tree(const std::vector<OracleTerm>& terms, int64_t num_experts) {
  FloatMode mode;
  return tree_node(terms, 0, num_experts).value_or(0.0F);
}

}  // namespace plait::test
