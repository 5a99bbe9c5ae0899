/// The row functions: every tier has the bits of the reference, tails and guard pages included; sums and dots follow their stated order.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/float_mode.h"
#include "kernels/elementwise_support.h"
#include "kernels/elementwise_tiers.h"
#include "kernels/kernel_set.h"
#include "support/test_tensors.h"

namespace plait::test {
namespace {

using kernels::ElementwiseKernels;
using kernels::SumStep;

/// What a function reads and writes; every row ends right before a page without access. `out` starts with fixed contents (accumulators).
struct Operands {
  DType type;
  int64_t n;
  std::byte* a;       // 2n elements of type
  std::byte* b;       // n elements of type
  float* x;           // n floats
  std::byte* out;     // what `Result` says
  std::byte* second;  // n elements of type
};
enum class Result { scalar, floats, elements, hidden };

struct RowFunction {
  std::string name;
  Result result;
  std::function<void(const ElementwiseKernels&, const Operands&)> run;

  DType result_type(DType type) const { return result == Result::scalar || result == Result::floats ? DType::f32 : type; }
  int64_t result_count(int64_t n) const { return result == Result::scalar ? 1 : result == Result::hidden ? 2 * n : n; }
};

void add_activations(std::vector<RowFunction>* functions) {
  const std::pair<const char*, ActivationKind> kinds[] = {{"swiglu", ActivationKind::swiglu},
                                                          {"swiglu_clamped", ActivationKind::swiglu_clamped},
                                                          {"geglu_tanh", ActivationKind::geglu_tanh},
                                                          {"relu2", ActivationKind::relu2}};
  for (const auto& [kind_name, kind] : kinds) {
    for (bool interleaved : {false, true}) {
      Activation activation{.kind = kind, .interleaved = interleaved};
      std::string what = std::string(kind_name) + (interleaved ? " interleaved" : "");
      Result hidden = activation.gated() ? Result::hidden : Result::elements;
      functions->push_back({what, Result::elements, [=](auto& k, auto& o) { k.activation_forward(activation, o.type, o.a, o.out, o.n); }});
      functions->push_back(
          {what + " backward", hidden, [=](auto& k, auto& o) { k.activation_backward(activation, o.type, o.a, o.b, 0.9F, o.out, o.second, o.n); }});
      functions->push_back({what + " backward without act_w", hidden,
                            [=](auto& k, auto& o) { k.activation_backward(activation, o.type, o.a, o.b, 1.0F, o.out, nullptr, o.n); }});
    }
  }
}

std::vector<RowFunction> row_functions() {
  auto floats = [](const Operands& o) { return reinterpret_cast<float*>(o.out); };
  std::vector<RowFunction> functions = {
      {"load", Result::floats, [=](auto& k, auto& o) { k.load(o.type, o.a, floats(o), o.n); }},
      {"store", Result::elements, [=](auto& k, auto& o) { k.store(o.type, o.x, o.out, o.n); }},
      {"exp", Result::floats, [=](auto& k, auto& o) { k.exp(o.x, floats(o), o.n); }},
      {"log", Result::floats, [=](auto& k, auto& o) { k.log(o.x, floats(o), o.n); }},
      {"sigmoid", Result::floats, [=](auto& k, auto& o) { k.sigmoid(o.x, floats(o), o.n); }},
      {"sum", Result::scalar, [=](auto& k, auto& o) { *floats(o) = k.sum(o.x, o.n); }},
      {"dot", Result::scalar, [=](auto& k, auto& o) { *floats(o) = k.dot(o.type, o.a, o.b, o.n); }},
      {"scale", Result::floats, [=](auto& k, auto& o) { k.scale(o.type, 0.7F, o.a, floats(o), o.n); }},
      {"scale_add", Result::floats, [=](auto& k, auto& o) { k.scale_add(o.type, -1.3F, o.a, floats(o), o.n); }},
      {"add", Result::floats, [=](auto& k, auto& o) { k.add(o.type, o.a, floats(o), o.n); }},
      {"sum_rows", Result::elements,
       [=](auto& k, auto& o) {
         const SumStep steps[] = {{.row = o.a, .type = o.type, .scaled = true, .weight = 0.3F},
                                  {.row = reinterpret_cast<std::byte*>(o.x), .type = DType::f32},
                                  {.row = o.b, .type = o.type, .scaled = true, .joins = true, .merges = 1, .weight = 1.7F},
                                  {.row = o.a, .type = o.type, .joins = true}};
         k.sum_rows(steps, 4, o.type, o.out, o.n);
       }},
  };
  add_activations(&functions);
  return functions;
}

class GuardedOperands {
 public:
  explicit GuardedOperands(int64_t max_n) : a_(8 * max_n), b_(4 * max_n), x_(4 * max_n), out_(8 * max_n + 4), second_(4 * max_n) {}

  void fill(const RowFunction& function, DType type, int64_t n) {
    type_ = type;
    n_ = n;
    auto seed = static_cast<uint64_t>(n * 31 + static_cast<int>(type));
    fill(&a_, type, 2 * n, seed);
    fill(&b_, type, n, seed + 1);
    fill(&x_, DType::f32, n, seed + 2);
    fill(&out_, function.result_type(type), function.result_count(n), seed + 3);
    fill(&second_, type, n, seed + 4);
  }
  Operands operands() const { return {type_, n_, a_.data(), b_.data(), x_.floats(), out_.data(), second_.data()}; }
  bool intact() const { return a_.intact() && b_.intact() && x_.intact() && out_.intact() && second_.intact(); }

 private:
  static void fill(GuardedRow* row, DType type, int64_t n, uint64_t seed) {
    std::vector<std::byte> values = row_of(type, any_values(seed, n));
    row->resize(n * size_of(type));
    if (n > 0) std::memcpy(row->data(), values.data(), values.size());
  }
  DType type_ = DType::f32;
  int64_t n_ = 0;
  GuardedRow a_, b_, x_, out_, second_;
};

/// "" where the function gives the reference's bits and touches nothing else.
std::string fault(const RowFunction& function, const ElementwiseKernels& kernels, DType type, int64_t n, GuardedOperands* got,
                  GuardedOperands* expected) {
  got->fill(function, type, n);
  expected->fill(function, type, n);
  function.run(kernels, got->operands());
  function.run(reference_elementwise(), expected->operands());
  if (!got->intact()) return "wrote before its rows";
  std::string d = row_difference(function.result_type(type), got->operands().out, expected->operands().out, function.result_count(n));
  return d.empty() ? row_difference(type, got->operands().second, expected->operands().second, n) : d;
}

TEST(Elementwise, TiersHaveTheBitsOfTheReferenceForAllTails) {
  FloatMode mode;
  std::vector<int64_t> lengths;
  for (int64_t n = 0; n <= 70; ++n) lengths.push_back(n);
  for (int64_t n : {127, 128, 129, 200, 1000}) lengths.push_back(n);
  const std::vector<RowFunction> functions = row_functions();
  GuardedOperands got(lengths.back()), expected(lengths.back());
  for (const auto& [tier, kernels] : elementwise_tiers()) {
    for (const RowFunction& function : functions) {
      for (DType type : floating_types) {
        for (int64_t n : lengths) {
          ASSERT_EQ(fault(function, *kernels, type, n, &got, &expected), "") << tier << " " << function.name << " " << name(type) << " n=" << n;
        }
      }
    }
  }
}

TEST(Elementwise, RowsMayStartAnywhere) {
  FloatMode mode;
  constexpr int64_t n = 77;
  std::vector<float> values = any_values(5, n);
  for (const auto& [tier, kernels] : elementwise_tiers()) {
    for (DType type : floating_types) {
      std::vector<std::byte> row = row_of(type, values);
      std::vector<float> expected(n), got(n);
      kernels->load(type, row.data(), expected.data(), n);
      for (int64_t offset = 0; offset < 64; offset += size_of(type)) {
        std::vector<std::byte> moved(static_cast<size_t>(offset) + row.size());
        std::memcpy(moved.data() + offset, row.data(), row.size());
        kernels->load(type, moved.data() + offset, got.data(), n);
        for (size_t i = 0; i < n; ++i) ASSERT_EQ(bits_of(got[i]), bits_of(expected[i])) << tier << " offset " << offset;
      }
    }
  }
}

TEST(Elementwise, SumAddsSixteenInterleavedLanes) {
  FloatMode mode;
  for (int64_t n : {0, 1, 15, 16, 17, 100, 1001}) {
    Tensor x = random_tensor(DType::f32, {n}, 3);
    float lanes[16] = {};
    for (int64_t i = 0; i < n; ++i) lanes[i % 16] += x.as<float>()[i];
    for (int half = 8; half > 0; half /= 2) {
      for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    }
    for (const auto& [tier, kernels] : elementwise_tiers()) EXPECT_EQ(bits_of(kernels->sum(x.as<float>(), n)), bits_of(lanes[0])) << tier << " " << n;
  }
}

TEST(Elementwise, DotAddsBlocksOfSixtyFour) {
  FloatMode mode;
  for (DType type : floating_types) {
    for (int64_t n : {0, 1, 16, 63, 64, 65, 128, 500}) {
      Tensor a = random_tensor(type, {n}, 3), b = random_tensor(type, {n}, 4);
      float sum = 0;
      for (int64_t block = 0; block < n; block += 64) {
        float lanes[16] = {};
        for (int64_t i = block; i < std::min(n, block + 64); ++i) {
          lanes[i % 16] = std::fma(static_cast<float>(get(a, i)), static_cast<float>(get(b, i)), lanes[i % 16]);
        }
        for (int half = 8; half > 0; half /= 2) {
          for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
        }
        sum += lanes[0];
      }
      for (const auto& [tier, kernels] : elementwise_tiers()) {
        EXPECT_EQ(bits_of(kernels->dot(type, a.view.data, b.view.data, n)), bits_of(sum)) << tier << " " << name(type) << " " << n;
      }
    }
  }
}

TEST(Elementwise, MaxIsTheLargest) {
  FloatMode mode;
  for (const auto& [tier, kernels] : elementwise_tiers()) {
    for (int64_t n = 1; n < 50; ++n) {
      for (int64_t place = 0; place < n; ++place) {
        std::vector<float> x(static_cast<size_t>(n), -HUGE_VALF);
        x[static_cast<size_t>(place)] = -3.0F;
        ASSERT_EQ(kernels->max(x.data(), n), -3.0F) << tier << " n=" << n << " place " << place;
      }
    }
  }
}

TEST(Elementwise, ScaleAddRoundsTheProductFirst) {
  FloatMode mode;
  // 0x1.000002p0 squared is 1 + 2^-22 + 2^-46; only a fused operation would keep the last bit against -1.
  const float x = 0x1.000002p0F;
  for (const auto& [tier, kernels] : elementwise_tiers()) {
    float acc = -1.0F;
    kernels->scale_add(DType::f32, x, reinterpret_cast<const std::byte*>(&x), &acc, 1);
    EXPECT_EQ(acc, 0x1p-22F) << tier;
  }
}

TEST(Elementwise, SumRowsStartsWithItsFirstTerm) {
  FloatMode mode;
  const float minus_zero = -0.0F, one = 1.0F;
  const auto* row = reinterpret_cast<const std::byte*>(&minus_zero);
  for (const auto& [tier, kernels] : elementwise_tiers()) {
    float out = NAN;
    auto* out_bytes = reinterpret_cast<std::byte*>(&out);
    kernels->sum_rows(nullptr, 0, DType::f32, out_bytes, 1);
    EXPECT_EQ(bits_of(out), bits_of(0.0F)) << tier;
    SumStep first{.row = row, .joins = true};
    kernels->sum_rows(&first, 1, DType::f32, out_bytes, 1);
    EXPECT_EQ(bits_of(out), bits_of(-0.0F)) << tier;
    const SumStep scaled[] = {{.row = row, .scaled = true, .weight = 2.0F}, {.row = reinterpret_cast<const std::byte*>(&one), .merges = 1}};
    kernels->sum_rows(scaled, 2, DType::f32, out_bytes, 1);
    EXPECT_EQ(out, 1.0F) << tier;
  }
}

/// bf16 rows 256, 1, 1: a sum kept in bf16 would stay at 256.
TEST(Elementwise, SumRowsKeepsFloat32BetweenTerms) {
  FloatMode mode;
  Tensor rows = tensor_of(DType::bf16, {3}, {256, 1, 1});
  std::vector<SumStep> steps;
  for (int64_t i = 0; i < 3; ++i) steps.push_back({.row = rows.view.at(i), .type = DType::bf16, .scaled = true, .joins = true, .weight = 1.0F});
  for (const auto& [tier, kernels] : elementwise_tiers()) {
    Tensor y = make_tensor(DType::bf16, {1});
    kernels->sum_rows(steps.data(), 3, DType::bf16, y.view.data, 1);
    EXPECT_EQ(get(y, 0), 258) << tier;
  }
}

TEST(Elementwise, SumRowsHoldsADeepStack) {
  FloatMode mode;
  Tensor rows = integer_tensor(DType::f32, {kernels::max_sum_depth, 100}, 1);
  std::vector<SumStep> steps(kernels::max_sum_depth);
  for (int64_t i = 0; i < kernels::max_sum_depth; ++i) steps[static_cast<size_t>(i)].row = rows.view.at(i);
  steps.back().merges = kernels::max_sum_depth - 1;
  for (const auto& [tier, kernels] : elementwise_tiers()) {
    Tensor y = make_tensor(DType::f32, {100});
    kernels->sum_rows(steps.data(), kernels::max_sum_depth, DType::f32, y.view.data, 100);
    for (int64_t j = 0; j < 100; ++j) {
      double exact = 0;
      for (int64_t i = 0; i < kernels::max_sum_depth; ++i) exact += get(rows, i * 100 + j);
      ASSERT_EQ(get(y, j), exact) << tier;
    }
  }
}

TEST(Elementwise, SelfCheckPassesAndSeesAWrongFunction) {
  for (const auto& [tier, kernels] : elementwise_tiers()) {
    EXPECT_TRUE(kernels::elementwise_self_check(*kernels)) << tier;
    ElementwiseKernels broken = *kernels;
    broken.log = kernels->exp;
    EXPECT_FALSE(kernels::elementwise_self_check(broken)) << tier;
    broken = *kernels;
    broken.sum = kernels->max;
    EXPECT_FALSE(kernels::elementwise_self_check(broken)) << tier;
  }
}

/// The same bits on every architecture: a change of this number is a change of results, and must be announced.
TEST(Elementwise, DigestOfFixedResults) {
  constexpr uint64_t stored = 18306107028848489721U;
  for (const auto& [tier, kernels] : elementwise_tiers()) {
    uint64_t digest = 0xcbf29ce484222325U;  // FNV-1a
    for (uint32_t bits : kernels::elementwise_fixed_results(*kernels)) digest = (digest ^ bits) * 0x100000001b3U;
    EXPECT_EQ(digest, stored) << tier;
  }
}

}  // namespace
}  // namespace plait::test
