#include "plait/fused_expert.h"

#include <memory>
#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "arrays.h"
#include "bindings.h"
#include "contexts.h"
#include "group.h"
#include "saved_forward.h"

namespace nb = nanobind;

namespace plait::python {
namespace {

struct FusedExpertForward final : SavedForward {
  using SavedForward::SavedForward;
  FusedExpertOptions options;
  FusedExpertState state;
};

FusedExpertWeights weights_of(const Input& up, const OptionalInput& gate, const Input& down) {
  return {view_of("weights_up", up), view_of("weights_gate", gate), view_of("weights_down", down)};
}

/// Returns y and the state.
nb::tuple forward(const std::shared_ptr<RankGroup>& group, const Input& x, const Input& up, const OptionalInput& gate, const Input& down,
                  const Input& expert_ids, const OptionalInput& expert_weights, int64_t num_experts, const Activation& activation,
                  const std::string& dispatcher, bool sentinel, bool recompute) {
  Result<Dispatcher> parsed = parse_dispatcher(dispatcher);
  check(parsed.status());
  const ConstTensorView x_view = view_of("x", x), ids_view = view_of("expert_ids", expert_ids);
  const ConstTensorView expert_weights_view = view_of("expert_weights", expert_weights);
  const FusedExpertWeights weights = weights_of(up, gate, down);
  auto saved = std::make_unique<FusedExpertForward>(group);
  saved->options = {num_experts, activation, sentinel, recompute, *parsed};
  FusedExpertResult result = call_together(*group, "mc2_fused_expert", [&] {
    return mc2_fused_expert(*group->context, *group->group, x_view, weights, ids_view, expert_weights_view, saved->options);
  });
  saved->state = std::move(result.state);
  return nb::make_tuple(array_of(result.y, group), handle_of(std::move(saved)));
}

/// Returns dx.
nb::object backward(const Handle& handle, const Input& x, const Input& up, const OptionalInput& gate, const Input& down, const Input& dy,
                    const OptionalOutput& dup, const OptionalOutput& dgate, const OptionalOutput& ddown, const OptionalOutput& dexpert_weights) {
  const FusedExpertForward& saved = forward_of<FusedExpertForward>("mc2_fused_expert", handle);
  const ConstTensorView x_view = view_of("x", x), dy_view = view_of("dy", dy);
  const FusedExpertWeights weights = weights_of(up, gate, down);
  const FusedExpertGradients gradients{view_of("gradient of weights_up", dup), view_of("gradient of weights_gate", dgate),
                                       view_of("gradient of weights_down", ddown), view_of("gradient of expert_weights", dexpert_weights)};
  const Tensor dx = call_together(*saved.group, "mc2_fused_expert_backward", [&] {
    return mc2_fused_expert_backward(*saved.group->context, *saved.group->group, x_view, weights, saved.state, dy_view, gradients, saved.options);
  });
  return array_of(dx, saved.group);
}

}  // namespace

void bind_fused_expert(nb::module_& module) {
  module.def("mc2_fused_expert", &forward, nb::arg("group"), nb::arg("x"), nb::arg("weights_up"), nb::arg("weights_gate").none(),
             nb::arg("weights_down"), nb::arg("expert_ids"), nb::arg("expert_weights").none(), nb::arg("num_experts"), nb::arg("activation"),
             nb::arg("dispatcher"), nb::arg("sentinel"), nb::arg("recompute"));
  module.def("mc2_fused_expert_backward", &backward, nb::arg("state"), nb::arg("x"), nb::arg("weights_up"), nb::arg("weights_gate").none(),
             nb::arg("weights_down"), nb::arg("dy"), nb::arg("dweights_up").none(), nb::arg("dweights_gate").none(), nb::arg("dweights_down").none(),
             nb::arg("dexpert_weights").none());
}

}  // namespace plait::python
