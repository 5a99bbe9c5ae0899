#pragma once
/// Counter-based random numbers: a value depends on (seed, stream, index) alone, so that expert g or token i has the same values on any
/// number of ranks and threads, and on every platform (integer arithmetic and one float32 product).

#include <cstdint>

#include "plait/context.h"
#include "plait/tensor.h"

namespace plait::train {

/// What the numbers are for. The parameters of the model come first: their stream is their identity too.
enum class Stream : uint8_t {
  router,
  router_bias,
  choice_bias,
  gate_up,
  gate_up_bias,
  down,
  down_bias,
  shared_gate_up,
  shared_down,
  shared_gate,
  embedding,
  head,
  input_rows,
  output_gradient,
  expert_ids,
  expert_weights,
  expert_order,
  text,
};

/// 64 random bits: two rounds of the splitmix64 finaliser.
uint64_t random_bits(uint64_t seed, Stream stream, uint64_t index);
/// Uniform in [0, 1), a multiple of 2^-53.
double random_uniform(uint64_t seed, Stream stream, uint64_t index);
/// Mean 0, variance 1, |value| < 3.5: the sum of four 16-bit uniforms.
float random_normal(uint64_t seed, Stream stream, uint64_t index);

/// Element i of `out` (contiguous, floating type) = scale * random_normal(first_index + i), rounded to its type.
void fill_normal(const Context& context, uint64_t seed, Stream stream, uint64_t first_index, float scale, const TensorView& out);

}  // namespace plait::train
