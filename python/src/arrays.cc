#include "arrays.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "errors.h"

namespace plait::python {
namespace {

DType dtype_of(std::string_view name, nanobind::dlpack::dtype type) {
  using Code = nanobind::dlpack::dtype_code;
  auto is = [type](Code code, int bits) { return type.code == static_cast<uint8_t>(code) && type.bits == bits && type.lanes == 1; };
  if (is(Code::Float, 32)) return DType::f32;
  if (is(Code::Bfloat, 16)) return DType::bf16;
  if (is(Code::Float, 16)) return DType::f16;
  if (is(Code::Int, 32)) return DType::i32;
  if (is(Code::Int, 64)) return DType::i64;
  if (is(Code::UInt, 8) || is(Code::Bool, 8)) return DType::u8;
  raise(Status::invalid_argument(std::string(name) + ": elements are float32, bfloat16, float16, int32, int64, uint8 or bool; got DLPack type " +
                                 std::to_string(type.code) + " of " + std::to_string(type.bits) + " bits"));
}

nanobind::dlpack::dtype dlpack_type(DType type) {
  using Code = nanobind::dlpack::dtype_code;
  const Code code = type == DType::bf16 ? Code::Bfloat : is_floating(type) ? Code::Float : type == DType::u8 ? Code::UInt : Code::Int;
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(8 * size_of(type)), 1};
}

template <typename View, typename Array>
View make_view(std::string_view name, const Array& array) {
  if (array.ndim() == 0 || array.ndim() > View::max_dims) {
    raise(Status::invalid_argument(std::string(name) + ": " + std::to_string(array.ndim()) + " dimensions; one to four are possible"));
  }
  View view;
  view.dtype = dtype_of(name, array.dtype());
  view.data = static_cast<decltype(view.data)>(array.data());
  view.num_dims = static_cast<int>(array.ndim());
  for (size_t d = 0; d < array.ndim(); ++d) {
    view.shape[d] = static_cast<int64_t>(array.shape(d));
    view.strides[d] = array.stride(d);
  }
  return view;
}

}  // namespace

ConstTensorView view_of(std::string_view name, const Input& array) { return make_view<ConstTensorView>(name, array); }
ConstTensorView view_of(std::string_view name, const OptionalInput& array) { return array ? view_of(name, *array) : ConstTensorView(); }
TensorView view_of(std::string_view name, const Output& array) { return make_view<TensorView>(name, array); }
TensorView view_of(std::string_view name, const OptionalOutput& array) { return array ? view_of(name, *array) : TensorView(); }

nanobind::object array_of(const Tensor& tensor, std::shared_ptr<void> owner) {
  if (!tensor.defined()) return nanobind::none();
  struct Held {
    std::shared_ptr<void> owner;  // outlives the buffer
    Buffer buffer;
  };
  nanobind::capsule held(new Held{std::move(owner), tensor.buffer}, [](void* pointer) noexcept { delete static_cast<Held*>(pointer); });
  const TensorView& view = tensor.view;
  std::array<size_t, TensorView::max_dims> shape{};
  std::copy_n(view.shape.begin(), view.num_dims, shape.begin());
  Output array(view.data, static_cast<size_t>(view.num_dims), shape.data(), held, view.strides.data(), dlpack_type(view.dtype));
  return nanobind::cast(array);
}

std::vector<int64_t> integers_of(std::string_view name, const Input& array) {
  ConstTensorView view = view_of(name, array);
  if (view.num_dims > 2 || (view.dtype != DType::i32 && view.dtype != DType::i64)) {
    raise(Status::invalid_argument(std::string(name) + ": " + describe(view) + "; int32 or int64 of one or two dimensions"));
  }
  const int64_t columns = view.num_dims == 2 ? view.shape[1] : 1;
  std::vector<int64_t> numbers;
  numbers.reserve(static_cast<size_t>(view.num_elements()));
  for (int64_t i = 0; i < view.num_elements(); ++i) {
    const std::byte* at = view.at(i / columns, i % columns);
    numbers.push_back(view.dtype == DType::i32 ? *reinterpret_cast<const int32_t*>(at) : *reinterpret_cast<const int64_t*>(at));
  }
  return numbers;
}

}  // namespace plait::python
