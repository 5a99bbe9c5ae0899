#include "moe/activation_rows.h"

#include "kernels/elementwise.h"
#include "kernels/kernel_set.h"

namespace plait::moe {

void ActivationRows::run(int64_t begin, int64_t end, int64_t group, std::byte* scratch) const {
  const kernels::ElementwiseKernels& kernels = *context.kernels().elementwise;
  for (int64_t i = begin; i < end; ++i) {
    if (wants_dweights) *reinterpret_cast<float*>(dweights[i]) = weight_gradient(i, group, scratch);
    kernels.activation_backward(activation, dtype, h[i], g[i], weights != nullptr ? weights[i] : 1.0F, dh[i], act_w[i], intermediate);
  }
}

float ActivationRows::weight_gradient(int64_t row, int64_t group, std::byte* act) const {
  const kernels::ElementwiseKernels& kernels = *context.kernels().elementwise;
  kernels.activation_forward(activation, dtype, h[row], act, intermediate);
  const float through_act = kernels.dot(dtype, act, g[row], intermediate);
  if (!down_bias.defined()) return through_act;
  return through_act + kernels.dot(dtype, down_bias.at(group), dy[row], down_bias.shape[1]);
}

}  // namespace plait::moe
