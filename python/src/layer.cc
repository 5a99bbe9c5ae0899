#include "plait/layer.h"

#include <array>
#include <memory>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "bindings.h"
#include "contexts.h"
#include "group.h"
#include "router.h"
#include "saved_forward.h"

namespace nb = nanobind;

namespace plait::python {
namespace {

struct LayerForward final : SavedForward {
  using SavedForward::SavedForward;
  LayerConfig config;
  LayerState state;
};

/// The order of the lists of parameters; their gradients have the same one without choice_bias.
struct Parameter {
  const char* name;
  ConstTensorView LayerWeights::*weight;
  TensorView LayerGradients::*gradient;
};
constexpr std::array parameters = {
    Parameter{"router_weight", &LayerWeights::router, &LayerGradients::router},
    Parameter{"router_bias", &LayerWeights::router_bias, &LayerGradients::router_bias},
    Parameter{"choice_bias", &LayerWeights::choice_bias, nullptr},
    Parameter{"gate_up", &LayerWeights::gate_up, &LayerGradients::gate_up},
    Parameter{"gate_up_bias", &LayerWeights::gate_up_bias, &LayerGradients::gate_up_bias},
    Parameter{"down", &LayerWeights::down, &LayerGradients::down},
    Parameter{"down_bias", &LayerWeights::down_bias, &LayerGradients::down_bias},
    Parameter{"shared_gate_up", &LayerWeights::shared_gate_up, &LayerGradients::shared_gate_up},
    Parameter{"shared_down", &LayerWeights::shared_down, &LayerGradients::shared_down},
    Parameter{"shared_gate", &LayerWeights::shared_gate, &LayerGradients::shared_gate},
};

LayerWeights weights_of(const std::vector<OptionalInput>& arrays) {
  LayerWeights weights;
  for (size_t i = 0; i < parameters.size(); ++i) weights.*parameters[i].weight = view_of(parameters[i].name, arrays.at(i));
  return weights;
}

LayerGradients gradients_of(const std::vector<OptionalOutput>& arrays, bool accumulate) {
  LayerGradients gradients;
  gradients.accumulate = accumulate;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].gradient != nullptr) gradients.*parameters[i].gradient = view_of(std::string("d") + parameters[i].name, arrays.at(i));
  }
  return gradients;
}

LayerConfig make_config(const RouterConfig& router, const Activation& activation, const std::string& dispatcher, const std::string& combine,
                        bool router_f32, bool sentinel, bool recompute) {
  Result<Dispatcher> parsed_dispatcher = parse_dispatcher(dispatcher);
  check(parsed_dispatcher.status());
  Result<Combine> parsed_combine = parse_combine(combine);
  check(parsed_combine.status());
  LayerConfig config;
  config.router = router;
  config.router_f32 = router_f32;
  config.sentinel = sentinel;
  config.activation = activation;
  config.dispatcher = *parsed_dispatcher;
  config.combine = *parsed_combine;
  config.recompute = recompute;
  return config;
}

/// What the operands tell. With given ids these say how many experts a token has.
void fill_from_operands(LayerConfig& config, const ConstTensorView& x, const LayerWeights& weights, const GivenRouting& given, int num_ranks) {
  config.hidden = x.shape[1];
  config.intermediate = weights.down.shape[1];
  config.dtype = x.dtype;
  config.router.num_experts = weights.gate_up.shape[0] * num_ranks;
  if (given.ids.defined()) config.router.top_k = given.ids.shape[1];
  config.expert_bias = weights.gate_up_bias.defined() || weights.down_bias.defined();
  config.shared_intermediate = weights.shared_down.shape[0];
  config.shared_gate = weights.shared_gate.defined();
}

/// Returns the state, the ids, and the losses before any coefficient.
nb::tuple forward(const std::shared_ptr<RankGroup>& group, const LayerConfig& config, const Input& x, const OptionalInput& expert_ids,
                  const OptionalInput& expert_weights, const std::vector<OptionalInput>& weight_arrays, const Output& y) {
  const ConstTensorView x_view = view_of("x", x);
  const LayerWeights weights = weights_of(weight_arrays);
  const GivenRouting given{.ids = view_of("expert_ids", expert_ids), .weights = view_of("expert_weights", expert_weights)};
  const TensorView y_view = view_of("y", y);

  auto saved = std::make_unique<LayerForward>(group);
  saved->config = config;
  fill_from_operands(saved->config, x_view, weights, given, group->group->size());
  saved->state = call_together(*group, given.ids.defined() ? "moe_layer" : "moe", [&] {  //
    return layer_forward(*group->context, *group->group, saved->config, weights, x_view, y_view, given);
  });
  nb::object ids = array_of(saved->state.ids, group);
  const RouterLosses losses = saved->state.losses;
  return nb::make_tuple(handle_of(std::move(saved)), ids, losses.load_balancing, losses.z);
}

/// The last two are the gradients of the losses.
void backward(const Handle& handle, const Input& x, const std::vector<OptionalInput>& weight_arrays, const Input& dy, const Output& dx,
              const std::vector<OptionalOutput>& gradient_arrays, const OptionalOutput& dweights, bool accumulate, float dload_balancing, float dz) {
  LayerForward& saved = forward_of<LayerForward>("moe_layer", handle);
  const ConstTensorView x_view = view_of("x", x), dy_view = view_of("dy", dy);
  const LayerWeights weights = weights_of(weight_arrays);
  const LayerGradients gradients = gradients_of(gradient_arrays, accumulate);
  const TensorView dx_view = view_of("dx", dx), dweights_view = view_of("dweights", dweights);
  LayerConfig config = saved.config;
  const float scale = set_loss_gradients(config.router, dload_balancing, dz);
  call_together(*saved.group, saved.state.router_used ? "moe_backward" : "moe_layer_backward", [&] {
    return layer_backward(*saved.group->context, *saved.group->group, config, weights, x_view, saved.state, dy_view, dx_view, gradients,
                          dweights_view, scale);
  });
}

}  // namespace

void bind_layer(nb::module_& module) {
  module.def("dispatchers", [] {
    nb::list names;
    for (Dispatcher dispatcher : all_dispatchers()) names.append(std::string(name(dispatcher)));
    return names;
  });
  nb::class_<LayerConfig>(module, "LayerConfig")
      .def(
          "__init__",
          [](LayerConfig* self, const RouterConfig& router, const Activation& activation, const std::string& dispatcher, const std::string& combine,
             bool router_f32, bool sentinel,
             bool recompute) { new (self) LayerConfig(make_config(router, activation, dispatcher, combine, router_f32, sentinel, recompute)); },
          nb::arg("router"), nb::arg("activation"), nb::arg("dispatcher"), nb::arg("combine"), nb::arg("router_f32"), nb::arg("sentinel"),
          nb::arg("recompute"));
  module.def("layer_forward", &forward, nb::arg("group"), nb::arg("config"), nb::arg("x"), nb::arg("expert_ids").none(),
             nb::arg("expert_weights").none(), nb::arg("weights"), nb::arg("y"));
  module.def("layer_backward", &backward, nb::arg("state"), nb::arg("x"), nb::arg("weights"), nb::arg("dy"), nb::arg("dx"), nb::arg("gradients"),
             nb::arg("dweights").none(), nb::arg("accumulate"), nb::arg("dload_balancing"), nb::arg("dz"));
}

}  // namespace plait::python
