#include "plait/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>

namespace plait {

std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::u8:
      return "u8";
  }
  return "unknown";
}

std::string describe(const ConstTensorView& view) {
  if (!view.defined()) return "no tensor";
  auto count = static_cast<size_t>(view.num_dims);
  return fmt::format("{} ({}) strides ({})", name(view.dtype), fmt::join(std::span(view.shape).first(count), ", "),
                     fmt::join(std::span(view.strides).first(count), ", "));
}

}  // namespace plait
