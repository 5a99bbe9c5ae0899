// One training step of an MoE layer whose 8 experts live on 4 ranks (threads of this process), two on each.
#include <cmath>
#include <cstdio>
#include <vector>

#include "plait/plait.h"

namespace {

using plait::DType;

/// Some values of no meaning, the same on every run.
plait::Result<plait::Tensor> waves(const plait::Context& context, std::initializer_list<int64_t> shape, float phase) {
  plait::Result<plait::Tensor> tensor = context.empty(DType::f32, shape);
  if (!tensor.ok()) return tensor;
  auto* values = tensor->as<float>();
  for (int64_t i = 0; i < tensor->view.num_elements(); ++i) values[i] = 0.1F * std::sin(0.37F * static_cast<float>(i) + phase);
  return tensor;
}

/// What each rank does; every rank calls it.
plait::Status train_step(plait::Group& group) {
  constexpr int64_t tokens = 16;
  plait::LayerConfig config;
  config.hidden = 32;
  config.intermediate = 48;
  config.dtype = DType::f32;
  config.router.num_experts = 8;
  config.router.top_k = 2;
  if (plait::Status status = config.validate(group.size()); !status.ok()) return status;

  auto made = plait::Context::create({.threads = 1, .kernel = ""});
  if (!made.ok()) return made.status();
  const plait::Context& context = **made;
  const int64_t local_experts = config.router.num_experts / group.size();
  const auto rank = static_cast<float>(group.rank());

  auto x = waves(context, {tokens, config.hidden}, rank);
  auto router = waves(context, {config.router.num_experts, config.hidden}, 1);  // the router is the same on every rank
  auto gate_up = waves(context, {local_experts, config.hidden, 2 * config.intermediate}, 2 + rank);
  auto down = waves(context, {local_experts, config.intermediate, config.hidden}, 3 + rank);
  auto y = context.empty(DType::f32, {tokens, config.hidden});
  auto dx = context.empty(DType::f32, {tokens, config.hidden});
  auto gate_up_gradient = context.zeros(DType::f32, {local_experts, config.hidden, 2 * config.intermediate});
  for (const auto* tensor : {&x, &router, &gate_up, &down, &y, &dx, &gate_up_gradient}) {
    if (!tensor->ok()) return tensor->status();
  }

  plait::LayerWeights weights;
  weights.router = *router;
  weights.gate_up = *gate_up;
  weights.down = *down;
  auto state = plait::layer_forward(context, group, config, weights, *x, *y);
  if (!state.ok()) return state.status();

  // The loss is half the sum of y squared, so y is its own gradient.
  plait::LayerGradients gradients;
  gradients.gate_up = *gate_up_gradient;
  plait::Status status = plait::layer_backward(context, group, config, weights, *x, *state, *y, *dx, gradients);
  if (!status.ok()) return status;

  std::printf("rank %d: %lld rows for its experts, y[0] = %.6f, dx[0] = %.6f\n", group.rank(), static_cast<long long>(state->plan.num_recv_rows()),
              static_cast<double>(y->as<float>()[0]), static_cast<double>(dx->as<float>()[0]));
  return {};
}

}  // namespace

int main() {
  for (const plait::Status& status : plait::run_ranks(4, {}, train_step)) {
    if (status.ok()) continue;
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    return plait::exit_code(status);
  }
}
