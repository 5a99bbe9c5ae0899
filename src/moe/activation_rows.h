#pragma once
/// Backward of the activation row by row, as both the unfused stage and the fused tiles run it. docs/numerics.md section 5.

#include <cstdint>

#include "kernels/rows.h"
#include "plait/activation.h"
#include "plait/context.h"
#include "plait/tensor.h"

namespace plait::moe {

/// dh = activation'(h, weight * g); act_w = round(weight * act); dweight = dot(act, g) (+ dot(down_bias, dy)).
struct ActivationRows {
  const Context& context;
  const Activation& activation;
  DType dtype;
  int64_t intermediate;
  ConstTensorView down_bias;        ///< (G,H) or undefined
  kernels::Rows h{}, g{};           ///< rows of 2I (ungated I) and I elements
  kernels::Rows dy{};               ///< rows of H elements; read for the bias' part of dweights only
  const float* weights = nullptr;   ///< null: all 1
  kernels::MutableRows dweights{};  ///< one float32 each; null addresses: skipped
  bool wants_dweights = false;
  kernels::MutableRows dh{}, act_w{};  ///< act_w may be g itself

  int64_t scratch_bytes() const { return intermediate * size_of(dtype); }
  /// Rows [begin, end), all of one group. `scratch` is the calling thread's.
  void run(int64_t begin, int64_t end, int64_t group, std::byte* scratch) const;

 private:
  float weight_gradient(int64_t row, int64_t group, std::byte* act) const;
};

}  // namespace plait::moe
