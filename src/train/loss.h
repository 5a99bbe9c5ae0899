#pragma once
/// Cross-entropy of predicting a byte, in float32 with the fixed exp and log of the contract.

#include <cstdint>
#include <span>

#include "plait/context.h"
#include "plait/tensor.h"

namespace plait::train {

/// logits (T,V) f32, targets (T) in [0,V) -> losses (T) = log(sum exp(l - max)) - (l[target] - max), dlogits (T,V) = softmax - onehot in
/// the type of `dlogits`, rounded once. The gradient is that of the SUM over tokens; whoever needs the mean divides later, in float32.
void cross_entropy(const Context& context, const ConstTensorView& logits, std::span<const uint8_t> targets, std::span<float> losses,
                   const TensorView& dlogits);

}  // namespace plait::train
