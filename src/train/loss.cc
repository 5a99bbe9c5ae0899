#include "train/loss.h"

#include <vector>

#include "base/thread_pool.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_set.h"

namespace plait::train {

void cross_entropy(const Context& context, const ConstTensorView& logits, std::span<const uint8_t> targets, std::span<float> losses,
                   const TensorView& dlogits) {
  const kernels::ElementwiseKernels& elementwise = *context.kernels().elementwise;
  int64_t vocabulary = logits.shape[1];
  std::vector<float> rows(static_cast<size_t>(context.threads() * vocabulary));
  context.pool().parallel_for(logits.shape[0], [&](int64_t t, int worker) {
    const auto* row = reinterpret_cast<const float*>(logits.at(t));
    float* p = rows.data() + worker * vocabulary;
    uint8_t target = targets[static_cast<size_t>(t)];
    float largest = elementwise.max(row, vocabulary);
    for (int64_t v = 0; v < vocabulary; ++v) p[v] = row[v] - largest;
    float shifted = p[target];
    elementwise.exp(p, p, vocabulary);
    float sum = elementwise.sum(p, vocabulary), log_sum = 0;
    elementwise.log(&sum, &log_sum, 1);
    losses[static_cast<size_t>(t)] = log_sum - shifted;
    for (int64_t v = 0; v < vocabulary; ++v) p[v] = p[v] / sum;
    p[target] -= 1.0F;
    elementwise.store(dlogits.dtype, p, dlogits.at(t), vocabulary);
  });
}

}  // namespace plait::train
