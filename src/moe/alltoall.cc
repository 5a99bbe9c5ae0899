#include <numeric>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "moe/announce.h"
#include "moe/expert_path.h"
#include "moe/mlp.h"
#include "moe/shipment.h"
#include "plait/permute.h"

/// Dispatchers alltoall and eager: rows are permuted into the window, copied once by their experts' ranks, multiplied, and copied home.
namespace plait::moe {
namespace {

/// Delivers a shipment home. Its counts are those of the plan.
Result<Shipment::Delivered> send_home(LayerCall& call, Stage stage, const Shipment& shipment, const RoutingPlan& plan) {
  StageScope scope(call, stage);
  PLAIT_ASSIGN_OR_RETURN(const Exchange exchange, call.group.exchange(name(stage), {}, shipment.regions()));
  return shipment.deliver(call, Direction::combine, plan, exchange.regions[0]);
}

Result<Shipment> permute_rows(LayerCall& call, const ConstTensorView& x, int64_t num_rows, const LayerState& state) {
  StageScope scope(call, Stage::permute);
  const Section sections[] = {{x.dtype, x.shape[1]}};
  PLAIT_ASSIGN_OR_RETURN(Shipment shipment, Shipment::open(call, num_rows, sections));
  PLAIT_RETURN_IF_ERROR(permute(call.context, x, state.position, call.config.router.top_k, shipment.rows(0)));
  return shipment;
}

/// x (T,H) to the rows (A,H) of this rank's experts. The regions are let go as soon as the rows are here.
Result<Tensor> dispatch(LayerCall& call, const ConstTensorView& x, std::span<const int64_t> local_counts, LayerState& state) {
  const int64_t num_rows = std::accumulate(local_counts.begin(), local_counts.end(), int64_t{0});
  PLAIT_ASSIGN_OR_RETURN(const Shipment shipment, permute_rows(call, x, num_rows, state));
  PublishedViews views;
  PLAIT_ASSIGN_OR_RETURN(CountsMatrix counts, announce_forward(call, local_counts, shipment.regions(), views));
  state.plan = RoutingPlan(std::move(counts), call.group.rank());
  StageScope scope(call, Stage::dispatch);
  PLAIT_ASSIGN_OR_RETURN(Shipment::Delivered rows, shipment.deliver(call, Direction::dispatch, state.plan, views[0]));
  return rows[0];
}

Result<Tensor> gate_up(LayerCall& call, const Mlp& experts, const ConstTensorView& rows) {
  StageScope scope(call, Stage::gate_up);
  return experts.hidden(rows);
}

Result<Tensor> activate(LayerCall& call, const Mlp& experts, const ConstTensorView& h) {
  StageScope scope(call, Stage::activation);
  return experts.activated(h);
}

Result<Shipment> down(LayerCall& call, const Mlp& experts, const ConstTensorView& act) {
  StageScope scope(call, Stage::down);
  const Section sections[] = {{call.config.dtype, call.config.hidden}};
  PLAIT_ASSIGN_OR_RETURN(Shipment shipment, Shipment::open(call, act.shape[0], sections));
  PLAIT_RETURN_IF_ERROR(experts.project(act, shipment.rows(0)));
  return shipment;
}

Result<HomeRows> forward(LayerCall& call, const ConstTensorView& x, std::span<const int64_t> local_counts, LayerState& state) {
  PLAIT_ASSIGN_OR_RETURN(Tensor rows, dispatch(call, x, local_counts, state));
  const Mlp experts = routed_experts(call, state.plan);
  PLAIT_ASSIGN_OR_RETURN(Tensor h, gate_up(call, experts, rows));
  if (!call.config.recompute) {
    state.rows = rows;
    state.h = h;
  }
  rows = {};  // what the state does not keep goes back to the arena at once
  PLAIT_ASSIGN_OR_RETURN(Tensor act, activate(call, experts, h));
  h = {};
  PLAIT_ASSIGN_OR_RETURN(const Shipment results, down(call, experts, act));
  act = {};
  PLAIT_ASSIGN_OR_RETURN(Shipment::Delivered home, send_home(call, Stage::combine, results, state.plan));
  return HomeRows{home[0], {}, {}};
}

/// What a row of the expert side needs in backward, expert major.
struct ExpertRows {
  Tensor dy, weights;  ///< (A,H), (A,1) f32
  Tensor x, h;         ///< (A,H), (A,2I): kept by forward, or sent and computed again
};
enum BackwardSection : size_t { dy_section, weight_section, x_section };

/// dy travels unscaled, each row's weight beside it; with recompute x travels again in the same shipment.
Result<Shipment> permute_gradients(LayerCall& call, const ConstTensorView& x, const LayerState& state, const ConstTensorView& dy) {
  StageScope scope(call, Stage::permute);
  std::vector<Section> sections = {{dy.dtype, dy.shape[1]}, {DType::f32, 1}};
  if (call.config.recompute) sections.push_back({x.dtype, x.shape[1]});
  PLAIT_ASSIGN_OR_RETURN(Shipment shipment, Shipment::open(call, state.plan.num_send_rows(), sections));
  const int64_t k = call.config.router.top_k;
  const ConstTensorView weights(state.weights.view.data, DType::f32, {state.position.view.shape[0], 1});
  PLAIT_RETURN_IF_ERROR(permute(call.context, dy, state.position, k, shipment.rows(dy_section)));
  PLAIT_RETURN_IF_ERROR(permute(call.context, weights, state.position, 1, shipment.rows(weight_section)));
  if (call.config.recompute) PLAIT_RETURN_IF_ERROR(permute(call.context, x, state.position, k, shipment.rows(x_section)));
  return shipment;
}

/// dy (T,H) to the rows of this rank's experts.
Result<ExpertRows> dispatch_gradients(LayerCall& call, const ConstTensorView& x, const LayerState& state, const ConstTensorView& dy) {
  PLAIT_ASSIGN_OR_RETURN(const Shipment shipment, permute_gradients(call, x, state, dy));
  PublishedViews views;
  PLAIT_RETURN_IF_ERROR(announce_backward(call, state.plan, shipment.regions(), views));
  StageScope scope(call, Stage::backward_combine);
  PLAIT_ASSIGN_OR_RETURN(Shipment::Delivered rows, shipment.deliver(call, Direction::dispatch, state.plan, views[0]));
  return ExpertRows{rows[dy_section], rows[weight_section], call.config.recompute ? rows[x_section] : state.rows, state.h};
}

/// dh and act_w; the rows' dweights go straight into the shipment that takes them home.
Result<ActivationGradient> backward_activation(LayerCall& call, const Mlp& experts, const ExpertRows& rows, const TensorView& dweights) {
  Tensor g;
  {
    StageScope scope(call, Stage::backward_down);
    PLAIT_ASSIGN_OR_RETURN(g, experts.project_backward(rows.dy));
  }
  StageScope scope(call, Stage::backward_activation);
  return activation_gradient(experts, rows.h, g, rows.dy, rows.weights, dweights);
}

Status backward_gate_up(LayerCall& call, const Mlp& experts, const ConstTensorView& dh, const TensorView& dx) {
  StageScope scope(call, Stage::backward_gate_up);
  return experts.hidden_backward(dh, dx);
}

Status weight_gradients(LayerCall& call, const Mlp& experts, const ExpertRows& rows, const ActivationGradient& d, const LayerGradients& gradients) {
  StageScope scope(call, Stage::weight_gradient);
  const MlpGradients to{gradients.gate_up, gradients.gate_up_bias, gradients.down, gradients.down_bias, gradients.accumulate};
  PLAIT_RETURN_IF_ERROR(project_gradients(experts, d.act_w, rows.dy, rows.weights, to));
  return hidden_gradients(experts, rows.x, d.dh, to);
}

/// From the rows' dy to their dx and dweights, ready to go home, and this rank's weight gradients.
Result<Shipment> experts_backward(LayerCall& call, const RoutingPlan& plan, ExpertRows rows, const LayerGradients& gradients) {
  const Mlp experts = routed_experts(call, plan);
  if (call.config.recompute) {
    PLAIT_ASSIGN_OR_RETURN(rows.h, gate_up(call, experts, rows.x));
  }
  const Section sections[] = {{call.config.dtype, call.config.hidden}, {DType::f32, 1}};
  PLAIT_ASSIGN_OR_RETURN(Shipment results, Shipment::open(call, plan.num_recv_rows(), sections));
  PLAIT_ASSIGN_OR_RETURN(const ActivationGradient d, backward_activation(call, experts, rows, results.rows(1)));
  PLAIT_RETURN_IF_ERROR(backward_gate_up(call, experts, d.dh, results.rows(0)));
  PLAIT_RETURN_IF_ERROR(weight_gradients(call, experts, rows, d, gradients));
  return results;
}

Result<EntryGradients> backward(LayerCall& call, const ConstTensorView& x, const LayerState& state, const ConstTensorView& dy,
                                const LayerGradients& gradients) {
  PLAIT_ASSIGN_OR_RETURN(ExpertRows rows, dispatch_gradients(call, x, state, dy));
  PLAIT_ASSIGN_OR_RETURN(const Shipment results, experts_backward(call, state.plan, std::move(rows), gradients));
  PLAIT_ASSIGN_OR_RETURN(Shipment::Delivered home, send_home(call, Stage::backward_dispatch, results, state.plan));
  return EntryGradients{{home[0], {}, {}}, home[1]};
}

/// Everything is home already.
Status finish(LayerCall&, const RoutingPlan&, Stage) { return {}; }

}  // namespace

const ExpertPath alltoall_path = {forward, backward, finish};

}  // namespace plait::moe
