/// Seeded random shapes, groups and layouts: exact integers, the float64 bound, adjoint, and equal bits whatever the execution.

#include <gtest/gtest.h>

#include <cmath>

#include "ops/grouped_matmul_support.h"

namespace plait::test {
namespace {

using List = std::vector<int64_t>;

/// One problem with all its operands; sizes around the kernels' tiles, groups of 0 rows and a tail beyond the list included.
struct Problem {
  DType dtype;
  int64_t m, k, n, g;
  List counts;
  Tensor x, weight, bias, dy;
};

enum class Values { integers, reals };

Problem make_problem(uint64_t seed, Values values, int64_t largest = 70) {
  Random random(seed);
  Problem p{.dtype = static_cast<DType>(random.below(3)),
            .m = 0,
            .k = 0,
            .n = 0,
            .g = 1 + random.below(6),
            .counts = {},
            .x = {},
            .weight = {},
            .bias = {},
            .dy = {}};
  p.k = 1 + random.below(random.below(2) == 0 ? 9 : largest);
  p.n = 1 + random.below(random.below(2) == 0 ? 9 : largest);
  for (int64_t g = 0; g < p.g; ++g) {
    p.counts.push_back(random.below(3) == 0 ? 0 : random.below(20));
    p.m += p.counts.back();
  }
  p.m += random.below(2) == 0 ? 0 : random.below(5);
  auto fill = [&](std::initializer_list<int64_t> shape, uint64_t salt) {
    return values == Values::integers ? integer_tensor(p.dtype, shape, seed * 8 + salt) : random_tensor(p.dtype, shape, seed * 8 + salt);
  };
  p.x = fill({p.m, p.k}, 1);
  p.weight = fill({p.g, p.k, p.n}, 2);
  if (random.below(2) == 0) p.bias = fill({p.g, p.n}, 3);
  p.dy = fill({p.m, p.n}, 4);
  return p;
}

/// Everything the operators compute for a problem, operands and results in a given layout.
struct Results {
  Tensor y, dx, dw, dbias, accumulated;
};
Results run(const Context& context, const Problem& p, Layout operands = Layout::dense, Layout results = Layout::dense, bool fused = true) {
  GroupedMatmulOptions options{.fused = fused};
  Tensor x = in_layout(p.x, operands), weight = in_layout(p.weight, operands), dy = in_layout(p.dy, operands);
  Tensor bias = p.bias.defined() ? in_layout(p.bias, operands) : p.bias;
  Results r{.y = blank_in_layout(p.dtype, {p.m, p.n}, results),
            .dx = blank_in_layout(p.dtype, {p.m, p.k}, results),
            .dw = blank_in_layout(p.dtype, {p.g, p.k, p.n}, results),
            .dbias = blank_in_layout(p.dtype, {p.g, p.n}, results),
            .accumulated = in_layout(integer_tensor(DType::f32, {p.g, p.k, p.n}, 9), results)};
  EXPECT_TRUE(gmm(context, x, weight, p.counts, r.y, options, bias).ok());
  Status backward = grouped_matmul_backward(context, dy, x, weight, p.counts, {r.dx, r.dw, r.dbias}, options);
  EXPECT_TRUE(backward.ok()) << backward.to_string();
  EXPECT_TRUE(grouped_matmul_k(context, x, dy, p.counts, r.accumulated, true, options).ok());
  return r;
}

void expect_same_bits(const Results& a, const Results& b) {
  EXPECT_BITS_EQ(a.y, b.y);
  EXPECT_BITS_EQ(a.dx, b.dx);
  EXPECT_BITS_EQ(a.dw, b.dw);
  EXPECT_BITS_EQ(a.dbias, b.dbias);
  EXPECT_BITS_EQ(a.accumulated, b.accumulated);
}

/// Checks every element of every result with `check(found, oracle, type)`.
template <typename Check>
void for_each_element(const Problem& p, const Results& r, Check check) {
  ConstTensorView weight_t = p.weight.view.transposed(1, 2);
  for (int64_t i = 0; i < p.m * p.n; ++i) check(get(r.y, i), oracle_forward(p.x, p.weight, p.counts, p.bias, i / p.n, i % p.n), p.dtype);
  for (int64_t i = 0; i < p.m * p.k; ++i) check(get(r.dx, i), oracle_forward(p.dy, weight_t, p.counts, {}, i / p.k, i % p.k), p.dtype);
  Tensor accumulator = integer_tensor(DType::f32, {p.g, p.k, p.n}, 9);
  for (int64_t i = 0; i < p.g * p.k * p.n; ++i) {
    OracleElement e = oracle_dw(p.x, p.dy, p.counts, i / p.n / p.k, i / p.n % p.k, i % p.n);
    check(get(r.dw, i), e, p.dtype);
    double start = get(accumulator, i);
    e.value += start;
    e.magnitude += std::fabs(start);
    ++e.terms;
    check(get(r.accumulated, i), e, DType::f32);
  }
  Tensor ones = tensor_of(p.dtype, {p.m, 1}, std::vector<double>(static_cast<size_t>(p.m), 1));
  for (int64_t i = 0; i < p.g * p.n; ++i) check(get(r.dbias, i), oracle_dw(ones, p.dy, p.counts, i / p.n, 0, i % p.n), p.dtype);
}

TEST(GroupedMatmulFuzz, IntegersAreExact) {
  auto context = gmm_context(2);
  for (uint64_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(seed);
    Problem p = make_problem(seed, Values::integers, 40);
    int64_t wrong = 0;
    for_each_element(p, run(*context, p), [&](double found, const OracleElement& e, DType type) {
      Tensor rounded = tensor_of(type, {1}, {e.value});  // sums above 256 round in bf16
      wrong += found != get(rounded, 0);
    });
    ASSERT_EQ(wrong, 0);
  }
}

TEST(GroupedMatmulFuzz, WithinTheContractsErrorBound) {
  auto context = gmm_context(2);
  double worst = 0;
  for (uint64_t seed = 200; seed < 320; ++seed) {
    SCOPED_TRACE(seed);
    Problem p = make_problem(seed, Values::reals, 200);
    for_each_element(p, run(*context, p), [&](double found, const OracleElement& e, DType type) {
      double share = std::fabs(found - e.value) / std::max(allowed_error(e, type), 1e-300);
      worst = std::max(worst, share);
    });
    ASSERT_LE(worst, 1.0);
  }
  RecordProperty("worst_share_of_bound", std::to_string(worst));
  EXPECT_GT(worst, 0.1);  // the bound is a real one
}

TEST(GroupedMatmulFuzz, LayoutsDoNotChangeABit) {
  auto context = gmm_context(2);
  for (uint64_t seed = 400; seed < 430; ++seed) {
    Problem p = make_problem(seed, Values::reals);
    Results dense = run(*context, p);
    for (Layout operands : all_layouts) {
      for (Layout results : all_layouts) {
        SCOPED_TRACE("seed " + std::to_string(seed) + " layouts " + std::to_string(static_cast<int>(operands)) + ", " +
                     std::to_string(static_cast<int>(results)));
        poison(*context, 4096);
        expect_same_bits(run(*context, p, operands, results), dense);
      }
    }
  }
}

TEST(GroupedMatmulFuzz, TheLoopPerGroupGivesTheSameBits) {
  auto context = gmm_context(2);
  for (uint64_t seed = 500; seed < 560; ++seed) {
    SCOPED_TRACE(seed);
    Problem p = make_problem(seed, Values::reals, 150);
    expect_same_bits(run(*context, p, Layout::dense, Layout::dense, false), run(*context, p));
    expect_same_bits(run(*context, p, Layout::transposed, Layout::spread, false), run(*context, p));
  }
}

TEST(GroupedMatmulFuzz, ThreadsDoNotChangeABit) {
  auto one = gmm_context(1), two = gmm_context(2), eight = gmm_context(8);
  for (uint64_t seed = 600; seed < 640; ++seed) {
    SCOPED_TRACE(seed);
    Problem p = make_problem(seed, Values::reals, 300);
    Results expected = run(*one, p);
    expect_same_bits(run(*two, p), expected);
    expect_same_bits(run(*eight, p), expected);
  }
}

TEST(GroupedMatmulFuzz, TiersDoNotChangeABit) {
  auto reference = gmm_context(1, "reference");
  for (const TierState& state : tier_states()) {
    if (!state.usable) continue;
    auto other = gmm_context(2, std::string(name(state.tier)));
    for (uint64_t seed = 700; seed < 740; ++seed) {
      SCOPED_TRACE(std::string(name(state.tier)) + " seed " + std::to_string(seed));
      Problem p = make_problem(seed, Values::reals, 150);
      expect_same_bits(run(*other, p), run(*reference, p));
    }
  }
}

/// <dy, x W> = <dy W^T, x> = <W, x^T dy>: the three products are one trilinear form.
TEST(GroupedMatmulFuzz, BackwardIsTheAdjointOfForward) {
  auto context = gmm_context(2);
  auto inner = [](const ConstTensorView& a, const ConstTensorView& b) {
    double sum = 0;
    for (int64_t i = 0; i < a.num_elements(); ++i) sum += get(a, i) * get(b, i);
    return sum;
  };
  for (uint64_t seed = 800; seed < 840; ++seed) {
    SCOPED_TRACE(seed);
    Problem p = make_problem(seed, Values::integers, 40);
    p.bias = {};
    for (Tensor* t : {&p.x, &p.weight, &p.dy}) {  // f32: integers stay exact
      const TensorView& v = t->view;
      Tensor wide =
          v.num_dims == 2 ? make_tensor(DType::f32, {v.shape[0], v.shape[1]}) : make_tensor(DType::f32, {v.shape[0], v.shape[1], v.shape[2]});
      for (int64_t i = 0; i < v.num_elements(); ++i) set(wide, i, get(v, i));
      *t = wide;
    }
    p.dtype = DType::f32;
    Results r = run(*context, p);
    int64_t rows = 0;
    for (int64_t c : p.counts) rows += c;
    double form = inner(p.dy.view.slice(0, rows), r.y.view.slice(0, rows));
    EXPECT_EQ(form, inner(r.dx.view, p.x.view));
    EXPECT_EQ(form, inner(r.dw.view, p.weight.view));
  }
}

TEST(GroupedMatmulFuzz, AccumulationAddsTheChainOnce) {
  auto context = gmm_context(2);
  for (uint64_t seed = 900; seed < 920; ++seed) {
    SCOPED_TRACE(seed);
    Problem p = make_problem(seed, Values::reals);
    Tensor chain = make_tensor(DType::f32, {p.g, p.k, p.n});
    Tensor dbias_chain = make_tensor(DType::f32, {p.g, p.n});
    ASSERT_TRUE(grouped_matmul_k(*context, p.x, p.dy, p.counts, chain, false).ok());
    ASSERT_TRUE(grouped_bias_gradient(*context, p.dy, p.counts, dbias_chain, false).ok());
    Tensor sum = random_tensor(DType::f32, {p.g, p.k, p.n}, seed), dbias_sum = random_tensor(DType::f32, {p.g, p.n}, seed);
    Tensor expected = make_tensor(DType::f32, {p.g, p.k, p.n}), dbias_expected = make_tensor(DType::f32, {p.g, p.n});
    auto add = [](const Tensor& a, const Tensor& b, const Tensor& to) {
      for (int64_t i = 0; i < a.view.num_elements(); ++i) to.as<float>()[i] = a.as<float>()[i] + b.as<float>()[i];
    };
    add(sum, chain, expected);
    add(dbias_sum, dbias_chain, dbias_expected);
    ASSERT_TRUE(grouped_matmul_k(*context, p.x, p.dy, p.counts, sum, true).ok());
    ASSERT_TRUE(grouped_bias_gradient(*context, p.dy, p.counts, dbias_sum, true).ok());
    EXPECT_BITS_EQ(sum, expected);
    EXPECT_BITS_EQ(dbias_sum, dbias_expected);
  }
}

}  // namespace
}  // namespace plait::test
