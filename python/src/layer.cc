#include "plait/layer.h"

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "arrays.h"
#include "bindings.h"
#include "contexts.h"
#include "group.h"

namespace nb = nanobind;

namespace plait::python {
namespace {

/// What backward needs of a forward. Python holds it as an int64 array of one element, the id: it lives as long as that memory, in
/// whatever tensor or graph, and gives window memory back when the last reference goes.
struct SavedForward {
  int64_t id = 0;
  std::shared_ptr<RankGroup> group;  ///< declared before the state: the state's memory is the group's
  LayerConfig config;
  LayerState state;
};

class SavedForwards {
 public:
  void add(SavedForward& saved) {
    std::lock_guard lock(mutex_);
    saved.id = ++last_id_;
    by_id_[saved.id] = &saved;
  }
  void remove(int64_t id) {
    std::lock_guard lock(mutex_);
    by_id_.erase(id);
  }
  /// Null where the forward's memory has gone.
  SavedForward* find(int64_t id) {
    std::lock_guard lock(mutex_);
    auto found = by_id_.find(id);
    return found == by_id_.end() ? nullptr : found->second;
  }

 private:
  std::mutex mutex_;
  int64_t last_id_ = 0;
  std::unordered_map<int64_t, SavedForward*> by_id_;
};
SavedForwards& saved_forwards() {
  static auto* instance = new SavedForwards();  // never destroyed: tensors may outlive the module
  return *instance;
}

using Handle = nb::ndarray<int64_t, nb::shape<1>, nb::device::cpu>;

Handle handle_of(std::unique_ptr<SavedForward> saved) {
  saved_forwards().add(*saved);
  int64_t* id = &saved->id;
  nb::capsule owner(saved.release(), [](void* pointer) noexcept {
    auto* forward = static_cast<SavedForward*>(pointer);
    saved_forwards().remove(forward->id);
    delete forward;
  });
  return Handle(id, {1}, owner);
}

LayerWeights weights_of(const Input& gate_up, const OptionalInput& gate_up_bias, const Input& down, const OptionalInput& down_bias) {
  LayerWeights weights;
  weights.gate_up = view_of("gate_up", gate_up);
  weights.gate_up_bias = view_of("gate_up_bias", gate_up_bias);
  weights.down = view_of("down", down);
  weights.down_bias = view_of("down_bias", down_bias);
  return weights;
}

Handle forward(std::shared_ptr<RankGroup> group, const Input& x, const Input& ids, const OptionalInput& expert_weights, const Input& gate_up,
               const OptionalInput& gate_up_bias, const Input& down, const OptionalInput& down_bias, const Activation& activation,
               const std::string& dispatcher, bool sentinel, bool recompute, const Output& y) {
  Result<Dispatcher> parsed = parse_dispatcher(dispatcher);
  check(parsed.status());
  const ConstTensorView x_view = view_of("x", x);
  const LayerWeights weights = weights_of(gate_up, gate_up_bias, down, down_bias);
  const GivenRouting given{.ids = view_of("expert_ids", ids), .weights = view_of("expert_weights", expert_weights)};
  const TensorView y_view = view_of("y", y);

  auto saved = std::make_unique<SavedForward>();
  saved->group = group;
  LayerConfig& config = saved->config;
  config.hidden = x_view.shape[1];
  config.intermediate = weights.down.shape[1];
  config.dtype = x_view.dtype;
  config.router.num_experts = weights.gate_up.shape[0] * group->group->size();
  config.router.top_k = given.ids.shape[1];
  config.sentinel = sentinel;
  config.activation = activation;
  config.expert_bias = weights.gate_up_bias.defined() || weights.down_bias.defined();
  config.dispatcher = *parsed;
  config.recompute = recompute;
  saved->state = without_lock([&] { return layer_forward(*group->context, *group->group, config, weights, x_view, y_view, given); });
  return handle_of(std::move(saved));
}

void backward(const Handle& handle, const Input& x, const Input& gate_up, const OptionalInput& gate_up_bias, const Input& down,
              const OptionalInput& down_bias, const Input& dy, const Output& dx, const OptionalOutput& dgate_up, const OptionalOutput& dgate_up_bias,
              const OptionalOutput& ddown, const OptionalOutput& ddown_bias, const OptionalOutput& dweights) {
  SavedForward* saved = saved_forwards().find(*handle.data());
  if (saved == nullptr) {
    raise(Status::invalid_argument("moe_layer backward: the forward's state is gone; its tensor was copied, and the original is no longer there"));
  }
  const ConstTensorView x_view = view_of("x", x), dy_view = view_of("dy", dy);
  const LayerWeights weights = weights_of(gate_up, gate_up_bias, down, down_bias);
  LayerGradients gradients;
  gradients.gate_up = view_of("dgate_up", dgate_up);
  gradients.gate_up_bias = view_of("dgate_up_bias", dgate_up_bias);
  gradients.down = view_of("ddown", ddown);
  gradients.down_bias = view_of("ddown_bias", ddown_bias);
  gradients.accumulate = false;
  const TensorView dx_view = view_of("dx", dx), dweights_view = view_of("dweights", dweights);
  without_lock([&] {
    return layer_backward(*saved->group->context, *saved->group->group, saved->config, weights, x_view, saved->state, dy_view, dx_view, gradients,
                          dweights_view);
  });
}

}  // namespace

void bind_layer(nb::module_& module) {
  module.def("layer_forward", &forward, nb::arg("group"), nb::arg("x"), nb::arg("expert_ids"), nb::arg("expert_weights").none(), nb::arg("gate_up"),
             nb::arg("gate_up_bias").none(), nb::arg("down"), nb::arg("down_bias").none(), nb::arg("activation"), nb::arg("dispatcher"),
             nb::arg("sentinel"), nb::arg("recompute"), nb::arg("y"));
  module.def("layer_backward", &backward, nb::arg("state"), nb::arg("x"), nb::arg("gate_up"), nb::arg("gate_up_bias").none(), nb::arg("down"),
             nb::arg("down_bias").none(), nb::arg("dy"), nb::arg("dx"), nb::arg("dgate_up").none(), nb::arg("dgate_up_bias").none(),
             nb::arg("ddown").none(), nb::arg("ddown_bias").none(), nb::arg("dweights").none());
}

}  // namespace plait::python
