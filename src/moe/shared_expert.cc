#include "moe/shared_expert.h"

#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_set.h"
#include "moe/row_sums.h"
#include "moe/rows.h"
#include "ops/grouped_matmul_layout.h"

namespace plait::moe {
namespace {

/// Calls fn(token, worker) for all tokens, each of which reads some whole rows.
template <typename Fn>
void for_each_token(const Context& context, int64_t tokens, int64_t row_bytes, Fn fn) {
  for_blocks(context, tokens, row_bytes, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t t = begin; t < end; ++t) fn(t, worker);
  });
}

/// One group of all tokens; `tokens` must outlive it.
Mlp shared_mlp(const LayerCall& call, const int64_t& tokens) {
  const LayerWeights& w = call.weights;
  if (call.config.shared_intermediate == 0) return {call.context, call.config.activation, {}, {}, {}, {}, {}, {}};
  return {call.context, call.config.activation, as_group(w.shared_gate_up), {}, as_group(w.shared_down), {}, {&tokens, 1}, {}};
}

/// The gate's vector with contiguous elements, as one row.
Result<DenseInput> gate_vector(const LayerCall& call) { return rows_as(call.context, as_group(call.weights.shared_gate), call.config.dtype); }

/// s (T) = sigmoid(dot(x, w)).
Result<Tensor> gate_values(const LayerCall& call, const ConstTensorView& x) {
  const kernels::ElementwiseKernels& kernels = *call.context.kernels().elementwise;
  PLAIT_ASSIGN_OR_RETURN(const DenseInput gate, gate_vector(call));
  PLAIT_ASSIGN_OR_RETURN(Tensor values, call.context.empty(DType::f32, {x.shape[0]}));
  for_each_token(call.context, x.shape[0], x.shape[1] * size_of(x.dtype), [&](int64_t t, int) {
    const float z = kernels.dot(x.dtype, x.at(t), gate.view.data, x.shape[1]);
    kernels.sigmoid(&z, values.as<float>() + t, 1);
  });
  return values;
}

/// A filler's chains over all tokens.
std::vector<BlockChain> token_chains(const LayerCall& call, int64_t tokens, int64_t max_rows) {
  return make_own_chains(tokens, max_rows, call.context.threads());
}

/// dx_shared = round(dx + dz * w), in place.
Status add_gate_part(const LayerCall& call, const Tensor& dz, const Tensor& dx) {
  const Context& context = call.context;
  const kernels::ElementwiseKernels& kernels = *context.kernels().elementwise;
  const int64_t tokens = dx.view.shape[0], hidden = dx.view.shape[1];
  PLAIT_ASSIGN_OR_RETURN(const DenseInput gate, gate_vector(call));
  PLAIT_ASSIGN_OR_RETURN(const Tensor sums, context.empty(DType::f32, {context.threads(), hidden}));
  for_each_token(context, tokens, hidden * size_of(DType::f32), [&](int64_t t, int worker) {
    auto* sum = reinterpret_cast<float*>(sums.view.at(worker));
    kernels.load(dx.view.dtype, dx.view.at(t), sum, hidden);
    kernels.scale_add(gate.view.dtype, dz.as<float>()[t], gate.view.data, sum, hidden);
    kernels.store(dx.view.dtype, sum, dx.view.at(t), hidden);
  });
  return {};
}

}  // namespace

SharedForward::SharedForward(LayerCall& call, const ConstTensorView& x) : call_(call), x_(x), tokens_(x.shape[0]), mlp_(shared_mlp(call, tokens_)) {}

Status SharedForward::add_to(TileScheduler& scheduler) {
  if (!wanted()) return {};
  PLAIT_ASSIGN_OR_RETURN(h_, call_.context.empty(x_.dtype, {tokens_, call_.hidden_columns(call_.config.shared_intermediate)}));
  PLAIT_ASSIGN_OR_RETURN(row_, call_.context.empty(x_.dtype, {tokens_, call_.config.hidden}));
  const FusedForward rows{gmm_layout::rows_of(x_), gmm_layout::rows_of(row_.view), h_};
  PLAIT_ASSIGN_OR_RETURN(ForwardTiles tiles, ForwardTiles::create(mlp_, rows, TileRole::shared));
  tiles_.emplace(std::move(tiles));
  tiles_->add_to(scheduler, token_chains(call_, tokens_, tiles_->max_rows()), TileChain::no_gate);
  return {};
}

Status SharedForward::run_unfused() {
  PLAIT_ASSIGN_OR_RETURN(h_, mlp_.hidden(x_));
  PLAIT_ASSIGN_OR_RETURN(const Tensor act, mlp_.activated(h_));
  PLAIT_ASSIGN_OR_RETURN(row_, call_.context.empty(x_.dtype, {tokens_, call_.config.hidden}));
  return mlp_.project(act, row_);
}

Result<Tensor> SharedForward::finish(LayerState& state) {
  if (!wanted()) return Tensor{};
  StageScope scope(call_, Stage::shared_expert);
  if (!tiles_) PLAIT_RETURN_IF_ERROR(run_unfused());
  tiles_.reset();
  if (call_.config.shared_gate) {
    PLAIT_ASSIGN_OR_RETURN(state.shared_scale, gate_values(call_, x_));
  }
  if (!call_.config.recompute) {
    state.shared_h = h_;
    if (call_.config.shared_gate) state.shared_row = row_;
  }
  return std::move(row_);
}

SharedBackward::SharedBackward(LayerCall& call, const ConstTensorView& x, const LayerState& state, const ConstTensorView& dy,
                               const LayerGradients& gradients)
    : call_(call),
      x_(x),
      state_(state),
      dy_(dy),
      gradients_(gradients),
      tokens_(x.shape[0]),
      mlp_(shared_mlp(call, tokens_)),
      h_(state.shared_h),
      row_(state.shared_row) {}

MlpGradients SharedBackward::mlp_gradients() const {
  return {as_group(gradients_.shared_gate_up), {}, as_group(gradients_.shared_down), {}, gradients_.accumulate};
}

/// What forward left out to save memory.
Status SharedBackward::make_room_for_forward() {
  if (!call_.config.recompute) return {};
  PLAIT_ASSIGN_OR_RETURN(h_, call_.context.empty(x_.dtype, {tokens_, call_.hidden_columns(call_.config.shared_intermediate)}));
  if (!call_.config.shared_gate) return {};
  PLAIT_ASSIGN_OR_RETURN(row_, call_.context.empty(x_.dtype, {tokens_, call_.config.hidden}));
  return {};
}

Status SharedBackward::make_room() {
  const Context& context = call_.context;
  PLAIT_RETURN_IF_ERROR(make_room_for_forward());
  PLAIT_ASSIGN_OR_RETURN(dx_, context.empty(x_.dtype, {tokens_, call_.config.hidden}));
  if (!call_.config.shared_gate) return {};
  PLAIT_ASSIGN_OR_RETURN(gate_dy_, context.empty(dy_.dtype, {tokens_, call_.config.hidden}));
  PLAIT_ASSIGN_OR_RETURN(dz_, context.empty(DType::f32, {tokens_, 1}));
  PLAIT_ASSIGN_OR_RETURN(products_, context.empty(DType::f32, {context.threads(), call_.config.hidden}));
  return {};
}

/// Through the gate, token by token: the MLP's gradient round(s * dy), and dz = (ds * s) * (1 - s) with ds = dot(dy, row).
void SharedBackward::through_gate(int64_t begin, int64_t end, int worker) const {
  const kernels::ElementwiseKernels& kernels = *call_.context.kernels().elementwise;
  const int64_t hidden = dy_.shape[1];
  auto* product = reinterpret_cast<float*>(products_.view.at(worker));
  for (int64_t t = begin; t < end; ++t) {
    const float s = state_.shared_scale.as<float>()[t];
    const float ds = kernels.dot(dy_.dtype, dy_.at(t), row_.view.at(t), hidden);
    dz_.as<float>()[t] = ds * s * (1.0F - s);
    kernels.scale(dy_.dtype, s, dy_.at(t), product, hidden);
    kernels.store(dy_.dtype, product, gate_dy_.view.at(t), hidden);
  }
}

/// The gradient of the MLP's rows.
ConstTensorView SharedBackward::mlp_dy() const { return call_.config.shared_gate ? ConstTensorView(gate_dy_.view) : dy_; }

Status SharedBackward::add_to(TileScheduler& scheduler) {
  if (!wanted()) return {};
  PLAIT_RETURN_IF_ERROR(make_room());
  const bool gate = call_.config.shared_gate, recompute = call_.config.recompute;
  const kernels::Rows x = gmm_layout::rows_of(x_);
  int behind = TileChain::no_gate;
  if (gate && recompute) {
    behind = scheduler.add_gate();
    PLAIT_ASSIGN_OR_RETURN(ForwardTiles again, ForwardTiles::create(mlp_, {x, gmm_layout::rows_of(row_.view), h_}, TileRole::shared));
    forward_.emplace(std::move(again));
    forward_->add_to(scheduler, token_chains(call_, tokens_, forward_->max_rows()), behind);
  }
  PLAIT_ASSIGN_OR_RETURN(g_, call_.context.empty(x_.dtype, {tokens_, call_.config.shared_intermediate}));
  PLAIT_ASSIGN_OR_RETURN(dh_, call_.context.empty(x_.dtype, {tokens_, h_.view.shape[1]}));
  FusedBackward rows;
  rows.x = x;
  rows.dy = gmm_layout::rows_of(mlp_dy());
  rows.dx = gmm_layout::rows_of(dx_.view);
  rows.h = h_;
  rows.g = g_;
  rows.dh = dh_;
  BackwardTiles::Options options;
  options.role = TileRole::shared;
  options.hidden_again = recompute && !gate;
  if (gate) options.before = [this](int64_t begin, int64_t end, int worker) { through_gate(begin, end, worker); };
  PLAIT_ASSIGN_OR_RETURN(BackwardTiles tiles, BackwardTiles::create(mlp_, rows, mlp_gradients(), std::move(options)));
  tiles_.emplace(std::move(tiles));
  tiles_->add_to(scheduler, token_chains(call_, tokens_, tiles_->max_rows()), TileChain::no_gate, behind, 0);
  return {};
}

Status SharedBackward::run_unfused() {
  PLAIT_RETURN_IF_ERROR(make_room());
  if (call_.config.recompute) {
    PLAIT_RETURN_IF_ERROR(grouped_matmul(call_.context, x_, mlp_.gate_up, mlp_.group_rows, {}, h_));
    if (call_.config.shared_gate) {
      PLAIT_ASSIGN_OR_RETURN(const Tensor act, mlp_.activated(h_));
      PLAIT_RETURN_IF_ERROR(mlp_.project(act, row_));
    }
  }
  if (call_.config.shared_gate) {
    for_blocks(call_.context, tokens_, dy_.shape[1] * size_of(DType::f32),
               [&](int64_t begin, int64_t end, int worker) { through_gate(begin, end, worker); });
  }
  PLAIT_ASSIGN_OR_RETURN(const Tensor g, mlp_.project_backward(mlp_dy()));
  PLAIT_ASSIGN_OR_RETURN(const ActivationGradient d, activation_gradient(mlp_, h_, g, mlp_dy(), {}, {}));
  PLAIT_RETURN_IF_ERROR(project_gradients(mlp_, d.act_w, mlp_dy(), {}, mlp_gradients()));
  PLAIT_RETURN_IF_ERROR(hidden_gradients(mlp_, x_, d.dh, mlp_gradients()));
  return mlp_.hidden_backward(d.dh, dx_);
}

Result<Tensor> SharedBackward::finish() {
  if (!wanted()) return Tensor{};
  StageScope scope(call_, Stage::shared_expert);
  if (!tiles_) PLAIT_RETURN_IF_ERROR(run_unfused());
  if (!call_.config.shared_gate) return std::move(dx_);
  PLAIT_RETURN_IF_ERROR(add_gate_part(call_, dz_, dx_));
  if (gradients_.shared_gate.defined()) {
    PLAIT_RETURN_IF_ERROR(scaled_row_sums(call_.context, gmm_layout::rows_of(x_), x_.dtype, dz_.as<float>(), mlp_.group_rows, AbsentRows::add,
                                          as_group(gradients_.shared_gate), gradients_.accumulate));
  }
  return std::move(dx_);
}

}  // namespace plait::moe
