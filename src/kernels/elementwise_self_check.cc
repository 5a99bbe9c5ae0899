#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "base/float_mode.h"
#include "kernels/elementwise_tiers.h"
#include "kernels/kernel_set.h"

namespace plait::kernels {
namespace {

constexpr int64_t num_inputs = 331;  // no multiple of a block: tails are checked too
using Row = std::array<float, 2 * num_inputs>;

/// Numbers of every kind that a kernel may meet: ordinary ones, all exponents, and special values.
Row fixed_inputs(uint32_t seed) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr std::array special = {0.0F,        -0.0F,      1.0F,     -1.0F,    infinity, -infinity,       std::numeric_limits<float>::quiet_NaN(),
                                  0x1p-149F,   -0x1p-127F, 88.7228F, 88.8F,    -103.97F, -87.33654F,      65519.0F,
                                  0x1.00ffp0F, 0x1.01p0F,  65520.0F, 0x1p-24F, 0x1p-25F, 0x1.fffffep127F, 0x1.8p-15F};
  Row row;
  for (size_t i = 0; i < row.size(); ++i) {
    seed = seed * 1664525U + 1013904223U;
    float ordinary = static_cast<float>(static_cast<int32_t>(seed)) * 0x1p-28F;  // -8 to 8
    uint32_t any_exponent = (seed & 0x807fffffU) | (20U + seed % 215U) << 23;    // 2^-107 to 2^107
    row[i] = i % 11 == 5 ? special[i / 11 % special.size()] : i % 3 == 1 ? std::bit_cast<float>(any_exponent) : ordinary;
  }
  return row;
}

/// Runs the functions one after the other and keeps the bits of what they give.
class ResultRecorder {
 public:
  explicit ResultRecorder(const ElementwiseKernels& kernels) : kernels_(kernels), a_(fixed_inputs(1)), b_(fixed_inputs(2)) {}

  std::vector<uint32_t> all() {
    unary(kernels_.exp);
    unary(kernels_.log);
    unary(kernels_.sigmoid);
    keep(kernels_.sum(ordinary_.data(), num_inputs));
    keep(kernels_.max(ordinary_.data(), num_inputs));
    for (DType type : {DType::f32, DType::bf16, DType::f16}) rows_of(type);
    return std::move(results_);
  }

 private:
  using Bytes = std::array<std::byte, sizeof(Row)>;

  void keep(float x) { results_.push_back(std::isnan(x) ? 0x7fc00000U : std::bit_cast<uint32_t>(x)); }
  void keep(DType type, const std::byte* row, int64_t n) {
    Row values;
    kernels_.load(type, row, values.data(), n);
    for (int64_t i = 0; i < n; ++i) keep(values[static_cast<size_t>(i)]);
  }
  void unary(void (*function)(const float*, float*, int64_t)) {
    Row y;
    function(a_.data(), y.data(), num_inputs);
    for (int64_t i = 0; i < num_inputs; ++i) keep(y[static_cast<size_t>(i)]);
  }

  void rows_of(DType type) {
    Bytes a, b, ordinary;
    kernels_.store(type, a_.data(), a.data(), 2 * num_inputs);
    kernels_.store(type, b_.data(), b.data(), 2 * num_inputs);
    kernels_.store(type, ordinary_.data(), ordinary.data(), 2 * num_inputs);
    keep(type, a.data(), 2 * num_inputs);
    keep(kernels_.dot(type, ordinary.data(), ordinary.data() + size_of(type), num_inputs));

    Row acc = b_;
    kernels_.scale_add(type, 0x1.23456p0F, a.data(), acc.data(), num_inputs);
    kernels_.add(type, b.data(), acc.data(), num_inputs);
    kernels_.scale(type, -0x1.98765p1F, b.data(), acc.data() + num_inputs, num_inputs);
    for (float x : acc) keep(x);

    const std::array<SumStep, 4> steps = {{{.row = a.data(), .type = type, .scaled = true, .weight = 0.3F},
                                           {.row = b.data(), .type = type, .merges = 1},
                                           {.row = ordinary.data(), .type = type, .scaled = true, .joins = true, .weight = 0.7F},
                                           {.row = ordinary.data(), .type = type, .joins = true}}};
    Bytes out;
    kernels_.sum_rows(steps.data(), steps.size(), type, out.data(), num_inputs);
    keep(type, out.data(), num_inputs);
    for (ActivationKind kind : {ActivationKind::swiglu, ActivationKind::swiglu_clamped, ActivationKind::geglu_tanh, ActivationKind::relu2}) {
      for (bool interleaved : {false, true}) activation({.kind = kind, .interleaved = interleaved}, type, a.data(), b.data());
    }
  }
  void activation(const Activation& activation, DType type, const std::byte* h, const std::byte* da) {
    Bytes act, dh, act_w;
    kernels_.activation_forward(activation, type, h, act.data(), num_inputs);
    kernels_.activation_backward(activation, type, h, da, 0.9F, dh.data(), act_w.data(), num_inputs);
    keep(type, act.data(), num_inputs);
    keep(type, act_w.data(), num_inputs);
    keep(type, dh.data(), activation.hidden_columns(num_inputs));
  }

  const ElementwiseKernels& kernels_;
  Row a_, b_;
  Row ordinary_ = [] {
    Row row;
    for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(i * i % 97) * 0.37F - 17.0F;
    return row;
  }();
  std::vector<uint32_t> results_;
};

}  // namespace

std::vector<uint32_t> elementwise_fixed_results(const ElementwiseKernels& kernels) {
  FloatMode mode;
  return ResultRecorder(kernels).all();
}

bool elementwise_self_check(const ElementwiseKernels& kernels) {
  return elementwise_fixed_results(kernels) == elementwise_fixed_results(*elementwise_reference());
}

}  // namespace plait::kernels
