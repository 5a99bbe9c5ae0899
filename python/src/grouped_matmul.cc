#include "plait/grouped_matmul.h"

#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "bindings.h"
#include "contexts.h"

namespace nb = nanobind;

namespace plait::python {
namespace {

GroupedMatmulOptions options_of(int group_list_type, bool fused) {
  return {.group_list_type = static_cast<GroupListType>(group_list_type), .fused = fused};
}

void m_grouped(const Input& x, const Input& weight, const Input& group_list, int group_list_type, const OptionalInput& bias, const Output& y,
               bool fused) {
  const std::vector<int64_t> list = integers_of("group_list", group_list);
  const ConstTensorView x_view = view_of("x", x), weight_view = view_of("weight", weight), bias_view = view_of("bias", bias);
  const TensorView y_view = view_of("out", y);
  with_context([&](const Context& context) {
    return grouped_matmul(context, x_view, weight_view, list, bias_view, y_view, options_of(group_list_type, fused));
  });
}

void k_grouped(const Input& x, const Input& dy, const Input& group_list, int group_list_type, const Output& dw, bool accumulate, bool fused) {
  const std::vector<int64_t> list = integers_of("group_list", group_list);
  const ConstTensorView x_view = view_of("x", x), dy_view = view_of("dy", dy);
  const TensorView dw_view = view_of("out", dw);
  with_context([&](const Context& context) {
    return grouped_matmul_k(context, x_view, dy_view, list, dw_view, accumulate, options_of(group_list_type, fused));
  });
}

void backward(const Input& dy, const Input& x, const Input& weight, const Input& group_list, int group_list_type, const OptionalOutput& dx,
              const OptionalOutput& dw, const OptionalOutput& dbias, bool fused) {
  const std::vector<int64_t> list = integers_of("group_list", group_list);
  const ConstTensorView dy_view = view_of("dy", dy), x_view = view_of("x", x), weight_view = view_of("weight", weight);
  const GroupedMatmulGradients gradients{.dx = view_of("dx", dx), .dw = view_of("dw", dw), .dbias = view_of("dbias", dbias)};
  with_context([&](const Context& context) {
    return grouped_matmul_backward(context, dy_view, x_view, weight_view, list, gradients, options_of(group_list_type, fused));
  });
}

template <typename View, typename Array>
std::vector<View> views_of(std::string_view name, const std::vector<Array>& arrays) {
  std::vector<View> views;
  views.reserve(arrays.size());
  for (const Array& array : arrays) views.push_back(view_of(name, array));
  return views;
}

void lists(const std::vector<Input>& x, const std::vector<Input>& weight, const std::vector<Input>& bias, const std::vector<Output>& y) {
  const auto x_views = views_of<ConstTensorView>("x", x), weight_views = views_of<ConstTensorView>("weight", weight),
             bias_views = views_of<ConstTensorView>("bias", bias);
  const auto y_views = views_of<TensorView>("out", y);
  with_context([&](const Context& context) { return grouped_matmul_lists(context, x_views, weight_views, bias_views, y_views); });
}

}  // namespace

void bind_grouped_matmul(nb::module_& module) {
  module.def("grouped_matmul", &m_grouped, nb::arg("x"), nb::arg("weight"), nb::arg("group_list"), nb::arg("group_list_type"), nb::arg("bias").none(),
             nb::arg("out"), nb::arg("fused"));
  module.def("grouped_matmul_k", &k_grouped, nb::arg("x"), nb::arg("dy"), nb::arg("group_list"), nb::arg("group_list_type"), nb::arg("out"),
             nb::arg("accumulate"), nb::arg("fused"));
  module.def("grouped_matmul_backward", &backward, nb::arg("dy"), nb::arg("x"), nb::arg("weight"), nb::arg("group_list"), nb::arg("group_list_type"),
             nb::arg("dx").none(), nb::arg("dw").none(), nb::arg("dbias").none(), nb::arg("fused"));
  module.def("grouped_matmul_lists", &lists, nb::arg("x"), nb::arg("weight"), nb::arg("bias"), nb::arg("out"));
}

}  // namespace plait::python
