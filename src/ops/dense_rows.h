#pragma once
/// Rows whose elements are contiguous, for operators that take any strides: views with strided columns are copied element by element,
/// all others used where they lie. And the split of row loops over the pool, and one matrix as a group of its own.

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/thread_pool.h"
#include "plait/context.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait {

inline bool has_dense_rows(const ConstTensorView& view) { return view.shape[1] <= 1 || view.strides[1] == 1; }

/// A view with a leading dimension of 1; undefined stays undefined.
template <typename Byte>
BasicTensorView<Byte> as_group(const BasicTensorView<Byte>& view) {
  if (!view.defined()) return view;
  BasicTensorView<Byte> group = view;
  for (int d = view.num_dims; d > 0; --d) {
    group.shape[d] = view.shape[d - 1];
    group.strides[d] = view.strides[d - 1];
  }
  group.shape[0] = 1;
  group.strides[0] = view.shape[0] * view.strides[0];
  ++group.num_dims;
  return group;
}

/// to = from, element bits untouched: two (rows, columns) views of one shape and type, any strides.
void copy_elements(const Context& context, const ConstTensorView& from, const TensorView& to);

/// The same for two views with contiguous rows.
void copy_rows(const Context& context, const ConstTensorView& from, const TensorView& to);

/// A (rows, columns) input with contiguous rows; `copy` keeps the copied memory alive where there is one.
struct DenseInput {
  Tensor copy;
  ConstTensorView view;

  /// Error: resource_exhausted. An undefined view stays undefined.
  static Result<DenseInput> make(const Context& context, const ConstTensorView& view);
};

/// A (rows, columns) output with contiguous rows: the target itself, or scratch that finish() copies into it.
struct DenseOutput {
  Tensor scratch;
  TensorView view;
  TensorView target;

  static Result<DenseOutput> make(const Context& context, const TensorView& target);
  void finish(const Context& context) const;
};

/// Calls fn(begin, end, worker) for blocks of [0, num_items) with about 64 KiB of work each, on the context's threads.
template <typename Fn>
void for_blocks(const Context& context, int64_t num_items, int64_t bytes_per_item, Fn fn) {
  constexpr int64_t block_bytes = 64 * 1024;
  int64_t block = std::max<int64_t>(1, block_bytes / std::max<int64_t>(1, bytes_per_item));
  context.pool().parallel_for((num_items + block - 1) / block,
                              [&](int64_t task, int worker) { fn(task * block, std::min(num_items, (task + 1) * block), worker); });
}

/// The least i in [0, n) for which is_bad(i), or -1.
template <typename Predicate>
int64_t first_bad(const Context& context, int64_t n, Predicate is_bad) {
  std::atomic<int64_t> first = n;
  for_blocks(context, n, 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      if (!is_bad(i)) continue;
      for (int64_t seen = first.load(); i < seen && !first.compare_exchange_weak(seen, i);) {
      }
      return;
    }
  });
  return first.load() < n ? first.load() : -1;
}

}  // namespace plait
