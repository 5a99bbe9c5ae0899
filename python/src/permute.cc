#include "plait/permute.h"

#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include "arrays.h"
#include "bindings.h"
#include "contexts.h"

namespace nb = nanobind;

namespace plait::python {
namespace {

void sort_ids(const Input& ids, int64_t num_experts, bool sentinel, const Output& position) {
  const ConstTensorView ids_view = view_of("expert_ids", ids);
  const TensorView position_view = view_of("position", position);
  with_context([&](const Context& context) { return sort_by_expert(context, ids_view, num_experts, sentinel, position_view); });
}

void sort_map(const Input& map, const Output& position) {
  const ConstTensorView map_view = view_of("routing_map", map);
  const TensorView position_view = view_of("position", position);
  with_context([&](const Context& context) { return sort_by_map(context, map_view, position_view); });
}

void permute_forward(const Input& x, const Input& position, int64_t k, const Output& rows) {
  const ConstTensorView x_view = view_of("x", x), position_view = view_of("position", position);
  const TensorView rows_view = view_of("rows", rows);
  with_context([&](const Context& context) { return permute(context, x_view, position_view, k, rows_view); });
}

void permute_gradient(const Input& drows, const Input& position, int64_t k, const OptionalInput& ids, int64_t num_experts, const Output& dx) {
  const ConstTensorView drows_view = view_of("drows", drows), position_view = view_of("position", position), ids_view = view_of("expert_ids", ids);
  const TensorView dx_view = view_of("dx", dx);
  with_context([&](const Context& context) { return permute_backward(context, drows_view, position_view, k, ids_view, num_experts, dx_view); });
}

void unpermute_forward(const Input& rows, const Input& position, int64_t k, const OptionalInput& weights, const OptionalInput& ids,
                       int64_t num_experts, const Output& y) {
  const ConstTensorView rows_view = view_of("rows", rows), position_view = view_of("position", position);
  const ConstTensorView weights_view = view_of("weights", weights), ids_view = view_of("expert_ids", ids);
  const TensorView y_view = view_of("y", y);
  with_context([&](const Context& context) { return unpermute(context, rows_view, position_view, k, weights_view, ids_view, num_experts, y_view); });
}

void unpermute_gradient(const Input& dy, const OptionalInput& rows, const Input& position, int64_t k, const OptionalInput& weights,
                        const OptionalOutput& drows, const OptionalOutput& dweights) {
  const ConstTensorView dy_view = view_of("dy", dy), rows_view = view_of("rows", rows), position_view = view_of("position", position);
  const ConstTensorView weights_view = view_of("weights", weights);
  const TensorView drows_view = view_of("drows", drows), dweights_view = view_of("dweights", dweights);
  with_context([&](const Context& context) {
    return unpermute_backward(context, dy_view, rows_view, position_view, k, weights_view, drows_view, dweights_view);
  });
}

void permute_map_forward(const Input& x, const Input& map, const Input& position, const Output& rows) {
  const ConstTensorView x_view = view_of("x", x), map_view = view_of("routing_map", map), position_view = view_of("position", position);
  const TensorView rows_view = view_of("rows", rows);
  with_context([&](const Context& context) { return permute_map(context, x_view, map_view, position_view, rows_view); });
}

void permute_map_gradient(const Input& drows, const Input& map, const Input& position, const Output& dx) {
  const ConstTensorView drows_view = view_of("drows", drows), map_view = view_of("routing_map", map), position_view = view_of("position", position);
  const TensorView dx_view = view_of("dx", dx);
  with_context([&](const Context& context) { return permute_map_backward(context, drows_view, map_view, position_view, dx_view); });
}

void unpermute_map_forward(const Input& rows, const Input& map, const Input& position, const OptionalInput& weights, const Output& y) {
  const ConstTensorView rows_view = view_of("rows", rows), map_view = view_of("routing_map", map), position_view = view_of("position", position);
  const ConstTensorView weights_view = view_of("weights", weights);
  const TensorView y_view = view_of("y", y);
  with_context([&](const Context& context) { return unpermute_map(context, rows_view, map_view, position_view, weights_view, y_view); });
}

void unpermute_map_gradient(const Input& dy, const OptionalInput& rows, const Input& map, const Input& position, const OptionalInput& weights,
                            const OptionalOutput& drows, const OptionalOutput& dweights) {
  const ConstTensorView dy_view = view_of("dy", dy), rows_view = view_of("rows", rows), map_view = view_of("routing_map", map);
  const ConstTensorView position_view = view_of("position", position), weights_view = view_of("weights", weights);
  const TensorView drows_view = view_of("drows", drows), dweights_view = view_of("dweights", dweights);
  with_context([&](const Context& context) {
    return unpermute_map_backward(context, dy_view, rows_view, map_view, position_view, weights_view, drows_view, dweights_view);
  });
}

}  // namespace

void bind_permute(nb::module_& module) {
  module.def("sort_by_expert", &sort_ids, nb::arg("expert_ids"), nb::arg("num_experts"), nb::arg("sentinel"), nb::arg("position"));
  module.def("sort_by_map", &sort_map, nb::arg("routing_map"), nb::arg("position"));
  module.def("permute", &permute_forward, nb::arg("x"), nb::arg("position"), nb::arg("k"), nb::arg("rows"));
  module.def("permute_backward", &permute_gradient, nb::arg("drows"), nb::arg("position"), nb::arg("k"), nb::arg("expert_ids").none(),
             nb::arg("num_experts"), nb::arg("dx"));
  module.def("unpermute", &unpermute_forward, nb::arg("rows"), nb::arg("position"), nb::arg("k"), nb::arg("weights").none(),
             nb::arg("expert_ids").none(), nb::arg("num_experts"), nb::arg("y"));
  module.def("unpermute_backward", &unpermute_gradient, nb::arg("dy"), nb::arg("rows").none(), nb::arg("position"), nb::arg("k"),
             nb::arg("weights").none(), nb::arg("drows").none(), nb::arg("dweights").none());
  module.def("permute_map", &permute_map_forward, nb::arg("x"), nb::arg("routing_map"), nb::arg("position"), nb::arg("rows"));
  module.def("permute_map_backward", &permute_map_gradient, nb::arg("drows"), nb::arg("routing_map"), nb::arg("position"), nb::arg("dx"));
  module.def("unpermute_map", &unpermute_map_forward, nb::arg("rows"), nb::arg("routing_map"), nb::arg("position"), nb::arg("weights").none(),
             nb::arg("y"));
  module.def("unpermute_map_backward", &unpermute_map_gradient, nb::arg("dy"), nb::arg("rows").none(), nb::arg("routing_map"), nb::arg("position"),
             nb::arg("weights").none(), nb::arg("drows").none(), nb::arg("dweights").none());
}

}  // namespace plait::python
