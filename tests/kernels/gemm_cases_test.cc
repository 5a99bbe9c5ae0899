// Small inputs on which other systems went wrong, with results known from the mathematics. Every tier, results into memory full of NaN.

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "kernels/gemm_problem.h"

namespace plait::test {
namespace {

std::vector<const Context*> all_contexts() {
  std::vector<const Context*> contexts = vector_contexts();
  contexts.push_back(&reference_context());
  return contexts;
}

kernels::MGroupedGemm forward_problem(const Tensor& x, const Tensor& w, const std::vector<int64_t>& counts, const Tensor& y, bool transposed) {
  kernels::MGroupedGemm problem{};
  problem.in = problem.out = x.view.dtype;
  problem.k = w.view.shape[transposed ? 2 : 1];
  problem.n = w.view.shape[transposed ? 1 : 2];
  problem.counts = counts;
  problem.x = {x.view.data, x.view.strides[0] * size_of(x.view.dtype), nullptr};
  problem.weights = {w.view.data, w.view.strides[0], w.view.strides[transposed ? 2 : 1], w.view.strides[transposed ? 1 : 2]};
  problem.y = {y.view.data, problem.n * size_of(x.view.dtype), nullptr};
  return problem;
}
kernels::KGroupedGemm gradient_problem(const Tensor& x, const Tensor& dy, const std::vector<int64_t>& counts, const Tensor& dw) {
  kernels::KGroupedGemm problem{};
  problem.in = x.view.dtype;
  problem.out = dw.view.dtype;
  problem.k = x.view.shape[1];
  problem.n = dy.view.shape[1];
  problem.counts = counts;
  problem.x = {x.view.data, problem.k * size_of(problem.in), nullptr};
  problem.dy = {dy.view.data, problem.n * size_of(problem.in), nullptr};
  problem.dw = dw.view.data;
  problem.dw_group_stride = problem.k * problem.n;
  problem.dw_k_stride = problem.n;
  return problem;
}

TEST(GemmCases, RowsBeyondTheCountsEnterNothing) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const std::vector<int64_t> counts = {2, 1};
  Tensor x = tensor_of(DType::f32, {5, 2}, {1, 0, 0, 1, 1, 1, inf, nan, 7, 7});
  Tensor w = tensor_of(DType::f32, {2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  Tensor dy = tensor_of(DType::f32, {5, 2}, {1, 1, 1, 1, 1, 1, nan, nan, nan, nan});
  for (const Context* context : all_contexts()) {
    for (int repeat = 0; repeat < 3; ++repeat) {
      Tensor y = make_tensor(DType::f32, {5, 2}), dx = make_tensor(DType::f32, {5, 2}), dw = make_tensor(DType::f32, {2, 2, 2});
      for (const Tensor* result : {&y, &dx}) {
        for (int64_t i = 0; i < 10; ++i) set(*result, i, -9);
      }
      ASSERT_TRUE(kernels::m_grouped_gemm(*context, forward_problem(x, w, counts, y, false)).ok());
      ASSERT_TRUE(kernels::m_grouped_gemm(*context, forward_problem(dy, w, counts, dx, true)).ok());
      ASSERT_TRUE(kernels::k_grouped_gemm(*context, gradient_problem(x, dy, counts, dw)).ok());
      EXPECT_EQ(to_vector(y), (std::vector<double>{1, 2, 3, 4, 12, 14, -9, -9, -9, -9}));
      EXPECT_EQ(to_vector(dx), (std::vector<double>{3, 7, 3, 7, 11, 15, -9, -9, -9, -9}));
      EXPECT_EQ(to_vector(dw), std::vector<double>(8, 1));
    }
  }
}

TEST(GemmCases, GroupsWithoutRows) {
  for (const Context* context : all_contexts()) {
    Tensor x = tensor_of(DType::f32, {3, 2}, std::vector<double>(6, 1)), dy = tensor_of(DType::f32, {3, 2}, std::vector<double>(6, 1));
    Tensor dw = make_tensor(DType::f32, {4, 2, 2});
    const std::vector<int64_t> some = {2, 0, 1, 0}, none = {0, 0, 0, 0}, first = {1, 0, 0, 0};
    ASSERT_TRUE(kernels::k_grouped_gemm(*context, gradient_problem(x, dy, some, dw)).ok());
    EXPECT_EQ(to_vector(dw), (std::vector<double>{2, 2, 2, 2, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0}));

    dw = make_tensor(DType::f32, {4, 2, 2});
    ASSERT_TRUE(kernels::k_grouped_gemm(*context, gradient_problem(x, dy, none, dw)).ok());
    EXPECT_EQ(to_vector(dw), std::vector<double>(16, 0));
    Tensor w = tensor_of(DType::f32, {4, 2, 2}, std::vector<double>(16, 1)), y = make_tensor(DType::f32, {0, 2});
    ASSERT_TRUE(kernels::m_grouped_gemm(*context, forward_problem(x, w, none, y, false)).ok());

    dw = tensor_of(DType::f32, {4, 2, 2}, std::vector<double>(16, 5));
    auto accumulate = gradient_problem(x, dy, first, dw);
    accumulate.accumulate = true;
    ASSERT_TRUE(kernels::k_grouped_gemm(*context, accumulate).ok());
    EXPECT_EQ(to_vector(dw), (std::vector<double>{6, 6, 6, 6, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5}));
  }
}

TEST(GemmCases, AnAccumulatorOfAnEmptyGroupKeepsItsBits) {
  for (const Context* context : all_contexts()) {
    Tensor dw = make_tensor(DType::f32, {2, 1, 1});
    dw.as<uint32_t>()[0] = 0x00000001U;  // a denormal, which an addition would flush
    dw.as<uint32_t>()[1] = 0x7fa00000U;  // a signalling NaN, which an addition would quieten
    const std::vector<int64_t> none = {0, 0};
    auto problem = gradient_problem(make_tensor(DType::f32, {0, 1}), make_tensor(DType::f32, {0, 1}), none, dw);
    problem.accumulate = true;
    ASSERT_TRUE(kernels::k_grouped_gemm(*context, problem).ok());
    EXPECT_EQ(dw.as<uint32_t>()[0], 0x00000001U);
    EXPECT_EQ(dw.as<uint32_t>()[1], 0x7fa00000U);
  }
}

TEST(GemmCases, RowsThatAreNoMultipleOfSixteenBytes) {
  Tensor x = make_tensor(DType::bf16, {3, 5}), w = make_tensor(DType::bf16, {2, 7, 5});
  for (int64_t i = 0; i < 15; ++i) set(x, i, static_cast<double>(i / 5 + i % 5));
  for (int64_t i = 0; i < 35; ++i) set(w, i, i / 5 == i % 5 ? 1 : 0);
  for (int64_t i = 35; i < 70; ++i) set(w, i, 1);
  const std::vector<int64_t> counts = {1, 2};
  std::vector<double> expected = {0, 1, 2, 3, 4, 0, 0};
  expected.insert(expected.end(), 7, 15);
  expected.insert(expected.end(), 7, 20);
  for (const Context* context : all_contexts()) {
    Tensor y = make_tensor(DType::bf16, {3, 7});
    ASSERT_TRUE(kernels::m_grouped_gemm(*context, forward_problem(x, w, counts, y, true)).ok());
    EXPECT_EQ(to_vector(y), expected) << name(context->tier());
  }
}

TEST(GemmCases, StridesOfZero) {
  const std::vector<int64_t> counts = {1};
  Tensor x = tensor_of(DType::f32, {1, 4}, {1, 2, 3, 4}), w = tensor_of(DType::f32, {1, 4, 2}, std::vector<double>(8, 1));
  Tensor dy = tensor_of(DType::f32, {1, 2}, {1, 1});
  x.view.strides[0] = 0;
  w.view.strides[0] = 0;
  for (const Context* context : all_contexts()) {
    Tensor y = make_tensor(DType::f32, {1, 2}), dx = make_tensor(DType::f32, {1, 4}), dw = make_tensor(DType::f32, {1, 4, 2});
    ASSERT_TRUE(kernels::m_grouped_gemm(*context, forward_problem(x, w, counts, y, false)).ok());
    EXPECT_EQ(to_vector(y), (std::vector<double>{10, 10}));
    ASSERT_TRUE(kernels::m_grouped_gemm(*context, forward_problem(dy, w, counts, dx, true)).ok());
    EXPECT_EQ(to_vector(dx), (std::vector<double>{2, 2, 2, 2}));
    ASSERT_TRUE(kernels::k_grouped_gemm(*context, gradient_problem(x, dy, counts, dw)).ok());
    EXPECT_EQ(to_vector(dw), (std::vector<double>{1, 1, 2, 2, 3, 3, 4, 4}));
    // Every column of the weights is the same memory.
    auto broadcast = forward_problem(x, w, counts, y, false);
    broadcast.weights.n_stride = 0;
    ASSERT_TRUE(kernels::m_grouped_gemm(*context, broadcast).ok());
    EXPECT_EQ(to_vector(y), (std::vector<double>{10, 10}));
  }
}

TEST(GemmCases, SumsAreKeptInFloat32) {
  const std::vector<int64_t> counts = {1};
  Tensor x = tensor_of(DType::bf16, {1, 259}, std::vector<double>(259, 1)), w = tensor_of(DType::bf16, {1, 259, 1}, std::vector<double>(259, 1));
  for (const Context* context : all_contexts()) {
    Tensor y = make_tensor(DType::bf16, {1, 1});
    ASSERT_TRUE(kernels::m_grouped_gemm(*context, forward_problem(x, w, counts, y, false)).ok());
    EXPECT_EQ(get(y, 0), 260.0) << name(context->tier());  // 259 rounded once; a bf16 accumulator would stop at 256
  }
}

}  // namespace
}  // namespace plait::test
