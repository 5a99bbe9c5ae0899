#include "ops/grouped_matmul_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "ops/dense_rows.h"

namespace plait::gmm_layout {
namespace {

struct ByteRange {
  const std::byte* begin;
  const std::byte* end;
};
ByteRange byte_range(const ConstTensorView& v) {
  int64_t low = 0;
  int64_t high = 0;
  for (int d = 0; d < v.num_dims; ++d) {
    int64_t reach = (v.shape[d] - 1) * v.strides[d];
    (reach < 0 ? low : high) += reach;
  }
  return {v.data + low * size_of(v.dtype), v.data + (high + 1) * size_of(v.dtype)};
}

/// Bytes of one contiguous run along the last dimension, or 0 where it is strided.
int64_t run_bytes(const ConstTensorView& v) {
  int last = v.num_dims - 1;
  return v.strides[last] == 1 || v.shape[last] == 1 ? v.shape[last] * size_of(v.dtype) : 0;
}

/// The greatest distance that divides every step from one run to another.
int64_t run_pitch(const ConstTensorView& v, int64_t pitch) {
  for (int d = 0; d < v.num_dims - 1; ++d) {
    if (v.shape[d] > 1) pitch = std::gcd(pitch, std::abs(v.strides[d]) * size_of(v.dtype));
  }
  return pitch;
}

bool share_memory(const ConstTensorView& a, const ConstTensorView& b) {
  if (a.num_elements() == 0 || b.num_elements() == 0) return false;
  ByteRange ra = byte_range(a);
  ByteRange rb = byte_range(b);
  if (ra.end <= rb.begin || rb.end <= ra.begin) return false;
  int64_t pitch = run_pitch(b, run_pitch(a, 0));
  int64_t run_a = run_bytes(a);
  int64_t run_b = run_bytes(b);
  if (pitch == 0 || run_a == 0 || run_b == 0) return true;
  int64_t offset = ((b.data - a.data) % pitch + pitch) % pitch;
  return offset < run_a || offset + run_b > pitch;
}

/// True where two index tuples of `v` name one element (two dimensions: exact; more: where the strides cannot rule it out).
bool may_overlap_itself(const ConstTensorView& v) {
  struct Axis {
    int64_t stride, last_idx;
  };
  std::vector<Axis> axes;
  for (int d = 0; d < v.num_dims; ++d) {
    if (v.shape[d] > 1) axes.push_back({std::abs(v.strides[d]), v.shape[d] - 1});
  }
  std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  int64_t reach = 0;
  bool nested = true;
  for (const Axis& axis : axes) {
    nested = nested && axis.stride > reach;
    reach += axis.last_idx * axis.stride;
  }
  if (nested || axes.size() != 2 || axes[0].stride == 0) return !nested;
  int64_t common = std::gcd(axes[0].stride, axes[1].stride);
  return axes[1].stride / common <= axes[0].last_idx && axes[0].stride / common <= axes[1].last_idx;
}

}  // namespace

kernels::Weights weights_of(const ConstTensorView& weight) {
  kernels::Weights w{weight.data, weight.strides[0], weight.strides[1], weight.strides[2]};
  if (weight.shape[2] == 1 && w.k_stride != 1) w.n_stride = 1;
  if (weight.shape[1] == 1 && w.n_stride != 1) w.k_stride = 1;
  return w;
}

void clear_matrix(const Context& context, const TensorView& matrix) {
  auto bytes = static_cast<size_t>(size_of(matrix.dtype));
  for_blocks(context, matrix.shape[0], matrix.shape[1] * size_of(matrix.dtype), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      if (has_dense_rows(matrix)) {
        std::memset(matrix.at(row), 0, bytes * static_cast<size_t>(matrix.shape[1]));
      } else {
        for (int64_t column = 0; column < matrix.shape[1]; ++column) std::memset(matrix.at(row, column), 0, bytes);
      }
    }
  });
}

Status check_result_layout(std::string_view operation, std::string_view what, const ConstTensorView& result) {
  if (result.num_elements() == 0 || !may_overlap_itself(result)) return {};
  return Status::invalid_argument(
      fmt::format("{}: elements of {} may lie on each other, its strides do not keep them apart: {}; give a result of its own memory", operation,
                  what, describe(result)));
}

Status check_apart(std::string_view operation, std::string_view result_name, const ConstTensorView& result, std::string_view operand_name,
                   const ConstTensorView& operand) {
  if (!operand.defined() || !result.defined() || !share_memory(result, operand)) return {};
  return Status::invalid_argument(
      fmt::format("{}: {} ({}) shares memory with {} ({}), which is read while it is written; give a result of its own memory", operation,
                  result_name, describe(result), operand_name, describe(operand)));
}

}  // namespace plait::gmm_layout
