#include "observe/measure_compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "observe/verify_bound.h"
#include "run_support.h"
#include "support/test_tensors.h"

namespace plait {
namespace {

TEST(CompareBits, FindsOneFlippedBit) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Tensor a = test::random_tensor(dtype, {7, 33}, 1), b = test::make_tensor(dtype, {7, 33});
    for (int64_t i = 0; i < a.view.num_elements(); ++i) test::set(b, i, test::get(a, i));
    EXPECT_TRUE(compare_bits(a, b).equal);
    b.view.data[100 * size_of(dtype)] ^= std::byte{1};
    Difference difference = compare_bits(a, b);
    EXPECT_FALSE(difference.equal) << name(dtype);
    EXPECT_EQ(difference.first, 100);
    EXPECT_EQ(difference.largest, 100);
    EXPECT_EQ(difference.max_abs, std::fabs(test::get(a, 100) - test::get(b, 100)));
    EXPECT_GT(difference.max_abs, 0);
  }
}

TEST(CompareBits, SignedZerosDifferAndNansAreEqual) {
  double nan = std::numeric_limits<double>::quiet_NaN();
  Tensor a = test::tensor_of(DType::f32, {3}, {0, nan, 1}), b = test::tensor_of(DType::f32, {3}, {-0.0, -nan, 1});
  Difference difference = compare_bits(a, b);
  EXPECT_FALSE(difference.equal);
  EXPECT_EQ(difference.first, 0);
  EXPECT_EQ(difference.max_abs, 0);
  test::set(b, 0, 0);
  EXPECT_TRUE(compare_bits(a, b).equal);
  test::set(b, 1, 5);
  EXPECT_EQ(compare_bits(a, b).max_abs, HUGE_VAL);
}

TEST(CompareBits, ShapesMustAgree) {
  Tensor a = test::random_tensor(DType::f32, {4}, 1), b = test::random_tensor(DType::f32, {2, 2}, 1);
  EXPECT_FALSE(compare_bits(a, b).equal);
}

TEST(CompareResults, NamesTheRankWithTheLargestDifference) {
  std::vector<Status> statuses = run_ranks(3, {}, [](Group& group) -> Status {
    Tensor y = test::tensor_of(DType::f32, {2, 2}, {1, 2, 3, 4}), dx = test::tensor_of(DType::f32, {1}, {1});
    std::vector<NamedResult> results{{"y", y}, {"dx", dx}};
    ResultCopies copies(results);
    if (group.rank() > 0) test::set(y, group.rank(), 10.0 * group.rank());
    auto differences = compare_results(group, results, copies);
    if (!differences.ok()) return differences.status();
    const ResultDifference& of_y = (*differences)[0];
    EXPECT_EQ(of_y.name, "y");
    EXPECT_FALSE(of_y.difference.equal);
    EXPECT_EQ(of_y.rank, 2);
    EXPECT_EQ(of_y.difference.max_abs, 17);
    EXPECT_EQ(of_y.difference.largest, 2);
    EXPECT_TRUE((*differences)[1].difference.equal);
    EXPECT_EQ((*differences)[1].rank, -1);
    return {};
  });
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(VerifyBound, ChainHoldsAndIsNotLoose) {
  // A float32 chain in order must lie inside its bound; a value off by one in a thousand must not.
  test::Random random(2);
  float sum = 0;
  verify::Chain chain;
  for (int i = 0; i < 1000; ++i) {
    float a = random.uniform(0, 1), b = random.uniform(0, 1);
    sum = std::fma(a, b, sum);
    chain.add({static_cast<double>(a), 0}, static_cast<double>(b));
  }
  verify::Bounded exact = chain.result();
  EXPECT_LE(std::fabs(static_cast<double>(sum) - exact.value), exact.error);
  EXPECT_LT(exact.error, 1e-3 * exact.value);
  EXPECT_GE(verify::rounded(exact, DType::bf16).error, exact.value / 256);
}

TEST(VerifyBound, ActivationsPropagateErrors) {
  for (ActivationKind kind : {ActivationKind::swiglu, ActivationKind::swiglu_clamped, ActivationKind::geglu_tanh, ActivationKind::relu2}) {
    Activation activation;
    activation.kind = kind;
    for (double gate : {-3.0, -0.2, 0.7, 6.99, 9.0}) {
      constexpr double step = 1e-3, up = 1.5;
      verify::Bounded value = verify::activation_value(activation, {gate, step}, {up, step});
      verify::Bounded moved = verify::activation_value(activation, {gate + step, 0}, {up - step, 0});
      EXPECT_LE(std::fabs(moved.value - value.value), value.error);
      // The derivative is that of the value.
      verify::ActivationGradients d = verify::activation_gradient(activation, {gate, 0}, {up, 0}, {1, 0});
      double plus = verify::activation_value(activation, {gate + 1e-6, 0}, {up, 0}).value;
      double minus = verify::activation_value(activation, {gate - 1e-6, 0}, {up, 0}).value;
      EXPECT_NEAR(d.gate.value, (plus - minus) / 2e-6, 1e-4) << name(kind) << gate;
      plus = verify::activation_value(activation, {gate, 0}, {up + 1e-6, 0}).value;
      minus = verify::activation_value(activation, {gate, 0}, {up - 1e-6, 0}).value;
      EXPECT_NEAR(d.up.value, (plus - minus) / 2e-6, 1e-4) << name(kind) << gate;
    }
  }
}

}  // namespace
}  // namespace plait
