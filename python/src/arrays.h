#pragma once
/// Arrays of other libraries (DLPack, buffers) as views of the core, and tensors of the core as arrays. Nothing is copied; the caller's array
/// must outlive the view.

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "plait/tensor.h"

namespace plait::python {

using Input = nanobind::ndarray<nanobind::ro, nanobind::device::cpu>;
using Output = nanobind::ndarray<nanobind::device::cpu>;
using OptionalInput = std::optional<Input>;
using OptionalOutput = std::optional<Output>;

/// `name` is the argument's, for messages. An absent array becomes an undefined view. Errors: more than four dimensions, none, or an
/// element type other than float32, bfloat16, float16, int32, int64, uint8 and bool (seen as uint8).
ConstTensorView view_of(std::string_view name, const Input& array);
ConstTensorView view_of(std::string_view name, const OptionalInput& array);
TensorView view_of(std::string_view name, const Output& array);
TensorView view_of(std::string_view name, const OptionalOutput& array);

/// A tensor of the core as an array that Python owns: its memory, and what `owner` holds, live as long as the array. Undefined: None.
nanobind::object array_of(const Tensor& tensor, std::shared_ptr<void> owner);

/// The numbers of an int32 or int64 array of one or two dimensions, row by row.
std::vector<int64_t> integers_of(std::string_view name, const Input& array);

}  // namespace plait::python
