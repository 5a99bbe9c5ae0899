#pragma once
/// Element types, strided tensor views and owning tensors. A view never owns; strides are in elements and may be 0 or negative.

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace plait {

enum class DType : uint8_t { f32, bf16, f16, i32, i64, u8 };

constexpr int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::i64:
      return 8;
    case DType::u8:
      return 1;
  }
  return 0;
}
/// "f32", "bf16", "f16", "i32", "i64", "u8".
std::string_view name(DType dtype);
constexpr bool is_floating(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

/// Where a tensor's memory is. Only the CPU exists today; the field keeps device memory possible.
enum class Device : uint8_t { cpu };

/// A view of up to four dimensions on memory that somebody else owns.
/// `Byte` is `std::byte` (writable) or `const std::byte`.
template <typename Byte>
struct BasicTensorView {
  static constexpr int max_dims = 4;

  Byte* data = nullptr;  ///< may be null when a dimension is 0
  DType dtype = DType::f32;
  Device device = Device::cpu;
  int num_dims = 0;
  std::array<int64_t, max_dims> shape{};
  std::array<int64_t, max_dims> strides{};  ///< in elements

  BasicTensorView() = default;
  /// A contiguous (row-major) view.
  BasicTensorView(void* p, DType type, std::initializer_list<int64_t> dims) requires(!std::is_const_v<Byte>)
      : data(static_cast<std::byte*>(p)), dtype(type), num_dims(static_cast<int>(dims.size())) {
    set_contiguous(dims);
  }
  BasicTensorView(const void* p, DType type, std::initializer_list<int64_t> dims) requires(std::is_const_v<Byte>)
      : data(static_cast<const std::byte*>(p)), dtype(type), num_dims(static_cast<int>(dims.size())) {
    set_contiguous(dims);
  }
  /// A read-only view of a writable one.
  template <typename Other>
  BasicTensorView(const BasicTensorView<Other>& other)  // NOLINT: implicit on purpose
      requires(std::is_const_v<Byte> && !std::is_const_v<Other>)
      : data(other.data), dtype(other.dtype), device(other.device), num_dims(other.num_dims), shape(other.shape), strides(other.strides) {}

  bool defined() const { return num_dims > 0; }
  int64_t num_elements() const {
    int64_t n = num_dims > 0 ? 1 : 0;
    for (int i = 0; i < num_dims; ++i) n *= shape[i];
    return n;
  }
  int64_t num_bytes() const { return num_elements() * size_of(dtype); }
  /// True where the elements lie row-major without gaps (dimensions of size 1 may have any stride).
  bool is_contiguous() const {
    int64_t expected = 1;
    for (int i = num_dims - 1; i >= 0; --i) {
      if (shape[i] != 1 && strides[i] != expected) return num_elements() == 0;
      expected *= shape[i];
    }
    return true;
  }
  /// The same elements with dimensions i and j exchanged; nothing is copied.
  BasicTensorView transposed(int i, int j) const {
    BasicTensorView t = *this;
    std::swap(t.shape[i], t.shape[j]);
    std::swap(t.strides[i], t.strides[j]);
    return t;
  }
  /// Address of element (i, j, ...) of the leading dimensions.
  Byte* at(int64_t i, int64_t j = 0, int64_t l = 0) const { return data + (i * strides[0] + j * strides[1] + l * strides[2]) * size_of(dtype); }
  /// The view of item i of the first dimension.
  BasicTensorView operator[](int64_t i) const {
    BasicTensorView t = *this;
    t.data = data + i * strides[0] * size_of(dtype);
    --t.num_dims;
    for (int d = 0; d < t.num_dims; ++d) {
      t.shape[d] = shape[d + 1];
      t.strides[d] = strides[d + 1];
    }
    t.shape[t.num_dims] = t.strides[t.num_dims] = 0;
    return t;
  }
  /// Items [begin, end) of the first dimension.
  BasicTensorView slice(int64_t begin, int64_t end) const {
    BasicTensorView t = *this;
    t.data = data + begin * strides[0] * size_of(dtype);
    t.shape[0] = end - begin;
    return t;
  }
  template <typename T>
  auto* as() const {
    if constexpr (std::is_const_v<Byte>)
      return reinterpret_cast<const T*>(data);
    else
      return reinterpret_cast<T*>(data);
  }

 private:
  void set_contiguous(std::initializer_list<int64_t> dims) {
    int d = 0;
    for (int64_t n : dims) shape[d++] = n;
    int64_t stride = 1;
    for (d = num_dims - 1; d >= 0; --d) {
      strides[d] = stride;
      stride *= shape[d];
    }
  }
};

using TensorView = BasicTensorView<std::byte>;
using ConstTensorView = BasicTensorView<const std::byte>;

/// "bf16 (128, 2048) strides (2048, 1)": how messages name a tensor.
std::string describe(const ConstTensorView& view);

/// Memory with one owner; where it came from takes it back when the last reference goes.
using Buffer = std::shared_ptr<std::byte>;

/// A contiguous tensor that owns its memory (usually from a Context's arena, so that steady-state calls touch no fresh pages).
/// The content of a new tensor is undefined.
struct Tensor {
  Buffer buffer;
  TensorView view;

  bool defined() const { return view.defined(); }
  operator TensorView() const { return view; }       // NOLINT: implicit on purpose
  operator ConstTensorView() const { return view; }  // NOLINT: implicit on purpose
  template <typename T>
  T* as() const {
    return view.as<T>();
  }
};

}  // namespace plait
