#include "train/random.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/test_tensors.h"
#include "train_support.h"

namespace plait::train {
namespace {

TEST(Random, ValuesDependOnSeedStreamAndIndexAlone) {
  EXPECT_EQ(random_bits(1, Stream::head, 5), random_bits(1, Stream::head, 5));
  EXPECT_NE(random_bits(1, Stream::head, 5), random_bits(2, Stream::head, 5));
  EXPECT_NE(random_bits(1, Stream::head, 5), random_bits(1, Stream::gate_up, 5));
  EXPECT_NE(random_bits(1, Stream::head, 5), random_bits(1, Stream::head, 6));
}

TEST(Random, NormalHasMeanZeroAndVarianceOne) {
  constexpr int n = 100000;
  double sum = 0, squares = 0, largest = 0;
  for (int i = 0; i < n; ++i) {
    double v = random_normal(3, Stream::down, static_cast<uint64_t>(i));
    sum += v;
    squares += v * v;
    largest = std::max(largest, std::fabs(v));
  }
  EXPECT_NEAR(sum / n, 0, 0.02);
  EXPECT_NEAR(squares / n, 1, 0.02);
  EXPECT_LT(largest, 3.5);
}

TEST(Random, UniformStaysBelowOne) {
  double smallest = 1, largest = 0;
  for (uint64_t i = 0; i < 100000; ++i) {
    double v = random_uniform(3, Stream::down, i);
    smallest = std::min(smallest, v);
    largest = std::max(largest, v);
  }
  EXPECT_GE(smallest, 0);
  EXPECT_LT(smallest, 0.001);
  EXPECT_LT(largest, 1);
  EXPECT_GT(largest, 0.999);
}

TEST(Random, FilledPiecesMakeTheWhole) {
  auto context = test::make_context(2);
  Tensor whole = test::make_tensor(DType::bf16, {5000}), second = test::make_tensor(DType::bf16, {3000});
  fill_normal(*context, 9, Stream::embedding, 0, 0.5F, whole);
  fill_normal(*context, 9, Stream::embedding, 2000, 0.5F, second);
  EXPECT_BITS_EQ(second.view, whole.view.slice(2000, 5000));
}

}  // namespace
}  // namespace plait::train
