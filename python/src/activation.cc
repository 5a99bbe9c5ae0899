#include "plait/activation.h"

#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "arrays.h"
#include "bindings.h"
#include "contexts.h"

namespace nb = nanobind;

namespace plait::python {

void bind_activation(nb::module_& module) {
  nb::class_<Activation>(module, "Activation")
      .def(
          "__init__",
          [](Activation* self, const std::string& kind, bool interleaved, float limit, float alpha) {
            Result<ActivationKind> parsed = parse_activation(kind);
            check(parsed.status());
            new (self) Activation{.kind = *parsed, .interleaved = interleaved, .limit = limit, .alpha = alpha};
          },
          nb::arg("kind"), nb::arg("interleaved"), nb::arg("limit"), nb::arg("alpha"));
  module.def(
      "activation_forward",
      [](const Activation& activation, const Input& h, const Output& act) {
        const ConstTensorView h_view = view_of("h", h);
        const TensorView act_view = view_of("act", act);
        with_context([&](const Context& context) { return activation_forward(context, activation, h_view, act_view); });
      },
      nb::arg("activation"), nb::arg("h"), nb::arg("act"));
  module.def(
      "activation_backward",
      [](const Activation& activation, const Input& h, const Input& da, const Output& dh) {
        const ConstTensorView h_view = view_of("h", h), da_view = view_of("da", da);
        const TensorView dh_view = view_of("dh", dh);
        with_context([&](const Context& context) { return activation_backward(context, activation, h_view, da_view, {}, dh_view, {}); });
      },
      nb::arg("activation"), nb::arg("h"), nb::arg("da"), nb::arg("dh"));
}

}  // namespace plait::python
