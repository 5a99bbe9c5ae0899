#pragma once
/// Random grouped products for the GEMM tests: one description gives the same inputs on every tier, thread count and storage.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/grouped_gemm.h"
#include "plait/context.h"
#include "support/test_tensors.h"

namespace plait::test {

enum class Storage { kn, nk, strided };   ///< weights stored [K,N], [N,K], or with gaps on both axes
enum class Fill { uniform, wide, bits };  ///< in [-1, 1], over many exponents, any bit pattern (denormals, NaN, inf included)

struct MCase {
  DType in = DType::f32, out = DType::f32;
  int64_t k = 1, n = 1;
  std::vector<int64_t> counts;
  Storage storage = Storage::kn;
  Fill fill = Fill::uniform;
  bool bias = false;
  bool list = false;       ///< rows by address, in random order, some read twice
  int64_t misaligned = 0;  ///< bytes that x rows, weights and y rows are away from their natural alignment
  uint64_t seed = 1;
  std::string to_string() const;
};
/// y (sum of counts, n) on memory of its own.
Tensor run(const Context& context, const MCase& c);
/// The same through tiles of at most `limits`, last tile first, on one thread.
Tensor run_tiles_backwards(const Context& context, const MCase& c, const kernels::TileLimits& limits);

struct KCase {
  DType in = DType::f32, out = DType::f32;
  int64_t k = 1, n = 1;
  std::vector<int64_t> counts;
  Storage storage = Storage::kn;  ///< of dw: row-major, column-major, with gaps
  Fill fill = Fill::uniform;
  bool list = false;
  bool accumulate = false;
  int64_t misaligned = 0;
  uint64_t seed = 1;
  std::string to_string() const;
};
/// dw (groups, k, n), contiguous whatever the storage was.
Tensor run(const Context& context, const KCase& c);
Tensor run_tiles_backwards(const Context& context, const KCase& c, const kernels::TileLimits& limits);
/// The same tile by tile, each `rows` rows of its group at a time.
Tensor run_in_stretches(const Context& context, const KCase& c, const kernels::TileLimits& limits, int64_t rows);

/// A tensor filled as `fill` says.
Tensor filled_tensor(DType dtype, std::initializer_list<int64_t> shape, Fill fill, uint64_t seed);

/// One context per usable tier except the reference, made once; and the reference.
std::vector<const Context*> vector_contexts();
const Context& reference_context();
std::unique_ptr<Context> make_context(int threads, std::string_view kernel = "");

}  // namespace plait::test
