// Nothing outside the operands is read or written: every buffer ends right before, or starts right after, an inaccessible page.

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <tuple>

#include <gtest/gtest.h>

#include "kernels/gemm_problem.h"

namespace plait::test {
namespace {

/// `bytes` bytes next to an inaccessible page: behind them, or before them.
class GuardedBuffer {
 public:
  GuardedBuffer(int64_t bytes, bool guard_behind) : bytes_(static_cast<size_t>(bytes)) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    size_ = (bytes_ + page - 1) / page * page + 2 * page;
    base_ = static_cast<std::byte*>(mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_EQ(mprotect(base_ + page, size_ - 2 * page, PROT_READ | PROT_WRITE), 0);
    data_ = guard_behind ? base_ + size_ - page - bytes_ : base_ + page;
  }
  ~GuardedBuffer() { munmap(base_, size_); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;
  std::byte* data() const { return data_; }
  void fill(const Tensor& values) const { std::memcpy(data_, values.view.data, bytes_); }

 private:
  size_t bytes_, size_ = 0;
  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
};

class GemmMemory : public testing::TestWithParam<std::tuple<DType, bool, bool>> {
 protected:
  DType type_ = std::get<0>(GetParam());
  bool behind_ = std::get<1>(GetParam());
  bool transposed_ = std::get<2>(GetParam());

  Tensor forward(const Context& context, int64_t rows, int64_t k, int64_t n, bool guarded) {
    const int64_t bytes = size_of(type_);
    Tensor x = random_tensor(type_, {rows, k}, 1), w = random_tensor(type_, {k, n}, 2), bias = random_tensor(type_, {n}, 3);
    Tensor y = make_tensor(type_, {rows, n});
    GuardedBuffer gx(rows * k * bytes, behind_), gw(k * n * bytes, behind_), gb(n * bytes, behind_), gy(rows * n * bytes, behind_);
    gx.fill(x);
    gw.fill(w);
    gb.fill(bias);
    const int64_t counts[] = {rows};
    kernels::MGroupedGemm problem{};
    problem.in = problem.out = problem.bias_type = type_;
    problem.k = k;
    problem.n = n;
    problem.counts = counts;
    problem.x = {guarded ? gx.data() : x.view.data, k * bytes, nullptr};
    problem.weights = {guarded ? gw.data() : w.view.data, k * n, transposed_ ? 1 : n, transposed_ ? k : 1};
    problem.bias = guarded ? gb.data() : bias.view.data;
    problem.y = {guarded ? gy.data() : y.view.data, n * bytes, nullptr};
    EXPECT_TRUE(kernels::m_grouped_gemm(context, problem).ok());
    if (guarded) std::memcpy(y.view.data, gy.data(), static_cast<size_t>(rows * n * bytes));
    return y;
  }

  Tensor gradient(const Context& context, int64_t rows, int64_t k, int64_t n, bool guarded) {
    const int64_t bytes = size_of(type_);
    Tensor x = random_tensor(type_, {rows, k}, 1), dy = random_tensor(type_, {rows, n}, 2);
    Tensor dw = make_tensor(type_, {k, n});
    GuardedBuffer gx(rows * k * bytes, behind_), gdy(rows * n * bytes, behind_), gdw(k * n * bytes, behind_);
    gx.fill(x);
    gdy.fill(dy);
    const int64_t counts[] = {rows};
    kernels::KGroupedGemm problem{};
    problem.in = problem.out = type_;
    problem.k = k;
    problem.n = n;
    problem.counts = counts;
    problem.x = {guarded ? gx.data() : x.view.data, k * bytes, nullptr};
    problem.dy = {guarded ? gdy.data() : dy.view.data, n * bytes, nullptr};
    problem.dw = guarded ? gdw.data() : dw.view.data;
    problem.dw_k_stride = transposed_ ? 1 : n;
    problem.dw_n_stride = transposed_ ? k : 1;
    EXPECT_TRUE(kernels::k_grouped_gemm(context, problem).ok());
    if (guarded) std::memcpy(dw.view.data, gdw.data(), static_cast<size_t>(k * n * bytes));
    return dw;
  }

  void check(const Context& context, int64_t rows, int64_t k, int64_t n) {
    const std::string where =
        std::string(name(context.tier())) + " rows " + std::to_string(rows) + " k " + std::to_string(k) + " n " + std::to_string(n);
    ASSERT_EQ(bit_difference(forward(context, rows, k, n, true), forward(context, rows, k, n, false)), "") << where;
    ASSERT_EQ(bit_difference(gradient(context, rows, k, n, true), gradient(context, rows, k, n, false)), "") << where;
  }
};

TEST_P(GemmMemory, EverySmallKAndN) {
  const int64_t rows[] = {1, 3, 7, 2};
  for (const Context* context : vector_contexts()) {
    for (int64_t k = 1; k <= 40; ++k) {
      for (int64_t n = 1; n <= 40; ++n) {
        check(*context, rows[(k + n) % 4], k, n);
        if (HasFatalFailure()) return;
      }
    }
  }
}

/// Large gradients of few rows go to memory past the caches, all but the last, narrow panel.
TEST_P(GemmMemory, LargeResultsOfFewRows) {
  constexpr int64_t k = PLAIT_TEST_EMULATED ? 70 : 2100, n = 2080;
  for (int64_t rows : {1, 4, 7}) {
    const Tensor expected = gradient(reference_context(), rows, k, n, false);
    for (const Context* context : vector_contexts()) {
      ASSERT_EQ(bit_difference(gradient(*context, rows, k, n, true), expected), "") << name(context->tier()) << " " << rows << " rows";
    }
  }
  // With 51 rows, a tile holds a part of the columns.
  for (const Context* context : vector_contexts()) {
    ASSERT_EQ(bit_difference(gradient(*context, 51, k, n, true), gradient(*context, 51, k, n, false)), "") << name(context->tier());
  }
}

TEST_P(GemmMemory, WholePanelsAndJustBeyond) {
  for (const Context* context : vector_contexts()) {
    for (int64_t k : {31, 32, 33, 64, 127, 256, 515}) {
      for (int64_t n : {63, 64, 65, 128, 130}) {
        check(*context, 5, k, n);
        check(*context, 14, k, n);
        if (HasFatalFailure()) return;
      }
    }
  }
}

std::string case_name(const testing::TestParamInfo<std::tuple<DType, bool, bool>>& info) {
  return std::string(name(std::get<0>(info.param))) + (std::get<1>(info.param) ? "_guard_behind" : "_guard_before") +
         (std::get<2>(info.param) ? "_transposed" : "");
}
INSTANTIATE_TEST_SUITE_P(All, GemmMemory, testing::Combine(testing::Values(DType::f32, DType::bf16, DType::f16), testing::Bool(), testing::Bool()),
                         case_name);

}  // namespace
}  // namespace plait::test
