#pragma once
/// Rows of a matrix, wherever they lie: at a constant stride from a base, or at a list of addresses. Elements of a row are contiguous.

#include <cstddef>
#include <cstdint>

namespace plait::kernels {

template <typename Byte>
struct BasicRows {
  Byte* base = nullptr;
  int64_t stride_bytes = 0;
  Byte* const* list = nullptr;  ///< where set, row i is at list[i]; base and stride are not used

  Byte* operator[](int64_t i) const { return list ? list[i] : base + i * stride_bytes; }
  /// The same rows, counted from row `first`.
  BasicRows from(int64_t first) const {
    return list ? BasicRows{nullptr, 0, list + first} : BasicRows{base + first * stride_bytes, stride_bytes, nullptr};
  }
};
using Rows = BasicRows<const std::byte>;
using MutableRows = BasicRows<std::byte>;

}  // namespace plait::kernels
