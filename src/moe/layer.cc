#include "plait/layer.h"

#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "moe/automatic.h"
#include "moe/call.h"
#include "moe/expert_path.h"
#include "moe/router_stage.h"
#include "moe/rows.h"
#include "moe/shared_expert.h"
#include "moe/weighted_sum.h"

namespace plait {
namespace moe {
namespace {

Result<LayerState> forward(LayerCall& call, const ConstTensorView& strided_x, const TensorView& y, const GivenRouting& given) {
  PLAIT_RETURN_IF_ERROR(check_forward(call, strided_x, y, given));
  DispatchChoice choice = choose_dispatcher(call);
  call.dispatcher = choice.dispatcher;
  const ExpertPath& path = expert_path(call.dispatcher);
  PLAIT_ASSIGN_OR_RETURN(const DenseInput x, rows_as(call.context, strided_x, call.config.dtype));

  LayerState state;
  state.dispatcher = call.dispatcher;
  state.dispatcher_reason = std::move(choice.reason);
  PLAIT_ASSIGN_OR_RETURN(const std::vector<int64_t> counts, route_tokens(call, x.view, given, state));
  SharedForward shared_expert(call, x.view);
  call.filler = &shared_expert;
  PLAIT_ASSIGN_OR_RETURN(const HomeRows rows, path.forward(call, x.view, counts, state));
  PLAIT_ASSIGN_OR_RETURN(const Tensor shared, shared_expert.finish(state));
  PLAIT_RETURN_IF_ERROR(path.finish(call, state.plan, Stage::combine));
  PLAIT_RETURN_IF_ERROR(weighted_sum(call, state, rows, shared, y));
  return state;
}

Status backward(LayerCall& call, const ConstTensorView& strided_x, const LayerState& state, const ConstTensorView& strided_dy, const TensorView& dx,
                const LayerGradients& gradients, const TensorView& dweights, float loss_scale) {
  PLAIT_RETURN_IF_ERROR(check_backward(call, strided_x, state, strided_dy, dx, gradients, dweights));
  call.dispatcher = state.dispatcher;
  const ExpertPath& path = expert_path(call.dispatcher);
  PLAIT_ASSIGN_OR_RETURN(const DenseInput x, rows_as(call.context, strided_x, call.config.dtype));
  PLAIT_ASSIGN_OR_RETURN(const DenseInput dy, rows_as(call.context, strided_dy, call.config.dtype));

  SharedBackward shared_expert(call, x.view, state, dy.view, gradients);
  call.filler = &shared_expert;
  PLAIT_ASSIGN_OR_RETURN(const EntryGradients entries, path.backward(call, x.view, state, dy.view, gradients));
  PLAIT_ASSIGN_OR_RETURN(const Tensor dx_shared, shared_expert.finish());
  PLAIT_RETURN_IF_ERROR(path.finish(call, state.plan, Stage::backward_dispatch));
  PLAIT_ASSIGN_OR_RETURN(const DenseInput dx_router, route_tokens_backward(call, x.view, state, entries.dweights, gradients, dweights, loss_scale));
  return sum_input_gradients(call, state, entries.dx, dx_router.view, dx_shared, dx);
}

}  // namespace
}  // namespace moe

Result<LayerState> layer_forward(const Context& context, Group& group, const LayerConfig& config, const LayerWeights& weights,
                                 const ConstTensorView& x, const TensorView& y, const GivenRouting& given) {
  moe::LayerCall call{context, group, config, weights};
  const int64_t begin_ns = now_ns();
  Result<LayerState> state = moe::forward(call, x, y, given);
  if (!state.ok()) return moe::stop_group(call, "moe_forward", state.status());
  moe::note_time(call, false, now_ns() - begin_ns);
  return state;
}

Status layer_backward(const Context& context, Group& group, const LayerConfig& config, const LayerWeights& weights, const ConstTensorView& x,
                      const LayerState& state, const ConstTensorView& dy, const TensorView& dx, const LayerGradients& gradients,
                      const TensorView& dweights, float loss_scale) {
  moe::LayerCall call{context, group, config, weights};
  const int64_t begin_ns = now_ns();
  Status status = moe::backward(call, x, state, dy, dx, gradients, dweights, loss_scale);
  if (!status.ok()) return moe::stop_group(call, "moe_backward", std::move(status));
  moe::note_time(call, true, now_ns() - begin_ns);
  return status;
}

}  // namespace plait
