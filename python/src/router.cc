#include "router.h"

#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "arrays.h"
#include "bindings.h"
#include "contexts.h"

namespace nb = nanobind;

namespace plait::python {
namespace {

void bind_config(nb::module_& module) {
  nb::class_<RouterConfig>(module, "RouterConfig")
      .def(
          "__init__",
          [](RouterConfig* self, int64_t num_experts, int64_t top_k, const std::string& score, bool norm_topk, float scaling, int64_t n_group,
             int64_t topk_group) {
            Result<ScoreFunction> parsed = parse_score_function(score);
            check(parsed.status());
            new (self) RouterConfig{.num_experts = num_experts,
                                    .top_k = top_k,
                                    .score = *parsed,
                                    .norm_topk = norm_topk,
                                    .scaling = scaling,
                                    .n_group = n_group,
                                    .topk_group = topk_group};
          },
          nb::arg("num_experts"), nb::arg("top_k"), nb::arg("score"), nb::arg("norm_topk"), nb::arg("scaling"), nb::arg("n_group"),
          nb::arg("topk_group"));
}

nb::tuple forward(const RouterConfig& config, const Input& logits, const OptionalInput& bias, const Output& ids, const Output& weights,
                  const Output& scores) {
  const ConstTensorView logits_view = view_of("logits", logits), bias_view = view_of("bias", bias);
  const TensorView ids_view = view_of("expert_ids", ids), weights_view = view_of("weights", weights), scores_view = view_of("scores", scores);
  const RouterLosses losses = with_context([&](const Context& context) {  //
    return route(context, config, logits_view, bias_view, ids_view, weights_view, scores_view);
  });
  return nb::make_tuple(losses.load_balancing, losses.z);
}

void backward(const RouterConfig& config, const Input& logits, const Input& scores, const Input& ids, const Input& weights, const Input& dweights,
              float dload_balancing, float dz, const Output& dlogits) {
  const ConstTensorView logits_view = view_of("logits", logits), scores_view = view_of("scores", scores), ids_view = view_of("expert_ids", ids);
  const ConstTensorView weights_view = view_of("weights", weights), dweights_view = view_of("dweights", dweights);
  const TensorView dlogits_view = view_of("dlogits", dlogits);
  RouterConfig with_losses = config;
  const float scale = set_loss_gradients(with_losses, dload_balancing, dz);
  with_context([&](const Context& context) {
    return route_backward(context, with_losses, logits_view, scores_view, ids_view, weights_view, dweights_view, scale, dlogits_view);
  });
}

}  // namespace

float set_loss_gradients(RouterConfig& config, float dload_balancing, float dz) {
  const float scale = dload_balancing < 0 || dz < 0 ? -1.0F : 1.0F;
  config.aux_loss = scale * dload_balancing;
  config.z_loss = scale * dz;
  return scale;
}

void bind_router(nb::module_& module) {
  bind_config(module);
  module.def("route", &forward, nb::arg("config"), nb::arg("logits"), nb::arg("bias").none(), nb::arg("expert_ids"), nb::arg("weights"),
             nb::arg("scores"));
  module.def("route_backward", &backward, nb::arg("config"), nb::arg("logits"), nb::arg("scores"), nb::arg("expert_ids"), nb::arg("weights"),
             nb::arg("dweights"), nb::arg("dload_balancing"), nb::arg("dz"), nb::arg("dlogits"));
}

}  // namespace plait::python
