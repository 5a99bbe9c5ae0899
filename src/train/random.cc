#include "train/random.h"

#include <algorithm>
#include <array>

#include "base/thread_pool.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_set.h"

namespace plait::train {
namespace {

uint64_t mix(uint64_t z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9U;
  z = (z ^ z >> 27) * 0x94d049bb133111ebU;
  return z ^ z >> 31;
}

}  // namespace

uint64_t random_bits(uint64_t seed, Stream stream, uint64_t index) {
  constexpr uint64_t golden = 0x9e3779b97f4a7c15U;
  uint64_t key = mix(mix(seed + golden) + (static_cast<uint64_t>(stream) + 1) * golden);
  return mix(key + (index + 1) * golden);
}

double random_uniform(uint64_t seed, Stream stream, uint64_t index) { return static_cast<double>(random_bits(seed, stream, index) >> 11) * 0x1p-53; }

float random_normal(uint64_t seed, Stream stream, uint64_t index) {
  uint64_t bits = random_bits(seed, stream, index);
  auto sum = static_cast<int64_t>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
  constexpr int64_t mean = 2 * 65535;
  constexpr float inverse_deviation = 1.0F / 37837.227F;  // sqrt(4 (65536^2 - 1) / 12)
  return static_cast<float>(sum - mean) * inverse_deviation;
}

void fill_normal(const Context& context, uint64_t seed, Stream stream, uint64_t first_index, float scale, const TensorView& out) {
  constexpr int64_t block = 1024;
  int64_t n = out.num_elements();
  const kernels::ElementwiseKernels& elementwise = *context.kernels().elementwise;
  context.pool().parallel_for((n + block - 1) / block, [&](int64_t task, int) {
    std::array<float, block> values;
    int64_t begin = task * block, count = std::min(block, n - begin);
    for (int64_t i = 0; i < count; ++i) {
      values[static_cast<size_t>(i)] = scale * random_normal(seed, stream, first_index + static_cast<uint64_t>(begin + i));
    }
    elementwise.store(out.dtype, values.data(), out.data + begin * size_of(out.dtype), count);
  });
}

}  // namespace plait::train
