/// RowSum: the tree over expert ids, against its definition; partial sums at any node change no bit.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/float_mode.h"
#include "kernels/kernel_set.h"
#include "ops/permute_support.h"
#include "ops/weighted_tree.h"

namespace plait::test {
namespace {

constexpr int64_t hidden = 37;

/// A token's terms: rows of f32, some weights 0, experts with repetition.
struct Token {
  std::vector<TreeTerm> terms;
  Tensor rows;
};
Token random_token(Random* random, int64_t k, int64_t num_experts, bool weighted) {
  Token token{{}, random_tensor(DType::f32, {k, hidden}, random->next())};
  for (int64_t slot = 0; slot < k; ++slot) {
    float weight = random->below(5) == 0 ? 0.0F : random->uniform(-1, 1);
    token.terms.push_back({.expert = random->below(num_experts), .row = token.rows.view.at(slot), .weighted = weighted, .weight = weight});
  }
  return token;
}

std::vector<float> summed(const Context& context, std::vector<TreeTerm> terms, int64_t num_experts) {
  FloatMode mode;
  RowSum sum;
  sum.add_tree(terms, num_experts);
  std::vector<float> out(hidden);
  sum.sum(*context.kernels().elementwise, DType::f32, reinterpret_cast<std::byte*>(out.data()), hidden);
  return out;
}

std::vector<float> by_definition(const std::vector<TreeTerm>& terms, int64_t num_experts) {
  std::vector<float> out;
  for (int64_t j = 0; j < hidden; ++j) {
    std::vector<OracleTerm> present;
    for (const TreeTerm& term : terms) {
      float value = reinterpret_cast<const float*>(term.row)[j];
      if (term.weighted && kernels::is_absent(term.weight)) continue;
      present.push_back({term.expert, term.weighted ? term.weight * value : value});
    }
    out.push_back(oracle_tree(present, num_experts));
  }
  return out;
}

TEST(PermuteTree, HasTheBitsOfTheDefinition) {
  auto context = permute_context();
  Random random(1);
  for (int64_t num_experts : {1, 2, 3, 5, 8, 60, 128, 257}) {
    for (int64_t k : {1, 2, 3, 8, 20}) {
      for (int repeat = 0; repeat < 20; ++repeat) {
        Token token = random_token(&random, k, num_experts, repeat % 2 == 0);
        ASSERT_EQ(summed(*context, token.terms, num_experts), by_definition(token.terms, num_experts)) << "E=" << num_experts << " k=" << k;
      }
    }
  }
}

TEST(PermuteTree, OrderOfSlotsDoesNotMatterWithoutRepeatedExperts) {
  auto context = permute_context();
  Random random(2);
  for (int repeat = 0; repeat < 50; ++repeat) {
    Token token = random_token(&random, 8, 64, true);
    for (int64_t slot = 0; slot < 8; ++slot) token.terms[static_cast<size_t>(slot)].expert = slot * 8 + random.below(8);
    std::vector<float> expected = summed(*context, token.terms, 64);
    std::reverse(token.terms.begin(), token.terms.end());
    EXPECT_EQ(summed(*context, token.terms, 64), expected);
  }
}

/// Sums of the maximal nodes inside [begin, end): each travels as one float32 row, tagged with an expert of its node.
void sum_nodes(const Context& context, const std::vector<TreeTerm>& terms, int64_t low, int64_t high, int64_t begin, int64_t end, int64_t num_experts,
               std::vector<TreeTerm>* nodes, std::vector<std::vector<float>>* memory) {
  if (high <= begin || end <= low) return;
  if (begin <= low && high <= end) {
    std::vector<TreeTerm> inside;
    std::copy_if(terms.begin(), terms.end(), std::back_inserter(inside),
                 [&](const TreeTerm& term) { return low <= term.expert && term.expert < high; });
    if (std::all_of(inside.begin(), inside.end(), [](const TreeTerm& t) { return t.weighted && kernels::is_absent(t.weight); })) return;
    memory->push_back(summed(context, inside, num_experts));
    nodes->push_back({.expert = low, .row = reinterpret_cast<const std::byte*>(memory->back().data())});
    return;
  }
  int64_t middle = low + (high - low) / 2;
  sum_nodes(context, terms, low, middle, begin, end, num_experts, nodes, memory);
  sum_nodes(context, terms, middle, high, begin, end, num_experts, nodes, memory);
}

TEST(PermuteTree, PartialSumsOfNodesChangeNoBit) {
  auto context = permute_context();
  Random random(3);
  for (int64_t num_experts : {6, 12, 60, 64, 128}) {
    for (int64_t num_ranks : {2, 3, 6}) {
      for (int repeat = 0; repeat < 30; ++repeat) {
        Token token = random_token(&random, 8, num_experts, true);
        std::vector<TreeTerm> nodes;
        std::vector<std::vector<float>> memory;
        for (int64_t rank = 0; rank < num_ranks; ++rank) {
          int64_t begin = rank * num_experts / num_ranks, end = (rank + 1) * num_experts / num_ranks;
          sum_nodes(*context, token.terms, 0, num_experts, begin, end, num_experts, &nodes, &memory);
        }
        std::reverse(nodes.begin(), nodes.end());  // any arrival order
        ASSERT_EQ(summed(*context, nodes, num_experts), summed(*context, token.terms, num_experts)) << "E=" << num_experts << " R=" << num_ranks;
      }
    }
  }
}

TEST(PermuteTree, TheDeepestTreeFitsTheStack) {
  auto context = permute_context();
  // Every left side is one expert, every right side the rest: 31 sums wait for the last expert.
  constexpr int64_t num_experts = int64_t{1} << 31;
  std::vector<TreeTerm> terms;
  Tensor rows = integer_tensor(DType::f32, {32, hidden}, 1);
  int64_t expert = 0;
  for (int64_t i = 0; i < 32; ++i) {
    terms.push_back({.expert = std::min(expert, num_experts - 1), .row = rows.view.at(i)});
    expert += (num_experts - expert) / 2;
  }
  std::vector<float> sum = summed(*context, terms, num_experts);
  for (int64_t j = 0; j < hidden; ++j) {
    double exact = 0;
    for (int64_t i = 0; i < 32; ++i) exact += get(rows, i * hidden + j);
    EXPECT_EQ(sum[static_cast<size_t>(j)], exact);
  }
}

TEST(PermuteTree, RowsAddedAfterTheTree) {
  auto context = permute_context();
  FloatMode mode;
  const auto& elementwise = *context->kernels().elementwise;
  Tensor row = tensor_of(DType::f32, {1}, {3}), extra = tensor_of(DType::bf16, {1}, {5}), minus_zero = tensor_of(DType::f32, {1}, {-0.0});
  std::vector<TreeTerm> terms = {{.expert = 1, .row = row.view.data, .weighted = true, .weight = 2.0F}};
  RowSum sum;
  sum.add_tree(terms, 4);
  sum.add_row({.row = extra.view.data, .type = DType::bf16, .weighted = true, .weight = 0.5F});
  sum.add_row({.row = nullptr});
  Tensor y = make_tensor(DType::bf16, {1});
  sum.sum(elementwise, DType::bf16, y.view.data, 1);
  EXPECT_EQ(get(y, 0), 8.5);

  // Where the tree has no term, the sum starts with the added row itself.
  terms[0].weight = 0;
  sum.clear();
  sum.add_tree(terms, 4);
  sum.add_row({.row = minus_zero.view.data});
  Tensor z = make_tensor(DType::f32, {1});
  sum.sum(elementwise, DType::f32, z.view.data, 1);
  EXPECT_TRUE(std::signbit(get(z, 0)));
}

}  // namespace
}  // namespace plait::test
