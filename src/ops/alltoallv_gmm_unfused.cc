#include <algorithm>
#include <array>

#include "base/status_macros.h"
#include "ops/alltoallv_gmm.h"
#include "ops/dense_rows.h"
#include "ops/grouped_matmul_run.h"
#include "routing/fused_call.h"
#include "routing/row_blocks.h"
#include "routing/window_buffer.h"

/// The sequence that the fused pair replaces: one exchange straight into place, before or after the grouped matmul.
namespace plait::a2av {
namespace {

/// Every rank's rows of one section into their places in `to`; in a group of one both orders are the same.
Status deliver(const Call& call, const RoutingPlan& plan, const WindowBuffer& own, std::span<const RegionView> views, const TensorView& to) {
  Zone zone(call.context.recorder(), call.travel);
  if (call.group.size() == 1) {
    copy_rows(call.context, ConstTensorView(own.data(), to.dtype, {to.shape[0], to.shape[1]}), to);
    return {};
  }
  const std::array<int64_t, 1> row_bytes{to.shape[1] * size_of(to.dtype)};
  const std::array<std::byte*, 1> destination{to.data};
  const RowBlocks blocks = (call.way == Way::out ? dispatch_blocks : combine_blocks)(plan, row_bytes, destination);
  const auto [leaving, coming] = crossing_rows(plan);  // the group counts their bytes
  call.context.recorder().add(Counter::rows_sent, call.way == Way::out ? leaving : coming);
  call.context.recorder().add(Counter::rows_received, call.way == Way::out ? coming : leaving);
  return call.group.all_to_all_v(call.context, name(call.travel), own.region(), views, blocks.send, blocks.recv);
}

Status multiply_shared(const Call& call, Tensor& shared_y) {
  PLAIT_ASSIGN_OR_RETURN(shared_y, shared_result(call));
  if (shared_y.defined()) {
    const int64_t rows = shared_y.view.shape[0];
    PLAIT_RETURN_IF_ERROR(gmm_run::m_grouped(call.context, call.shared.x, as_group(call.shared.weight), {&rows, 1}, {}, shared_y, true));
  }
  const SharedGradient& gradient = call.shared_gradient;
  if (!gradient.dw.defined()) return {};
  const int64_t rows = gradient.x.shape[0];
  return gmm_run::k_grouped(call.context, gradient.x, gradient.dy, {&rows, 1}, as_group(gradient.dw), call.accumulate, true);
}

Status expert_gradients(const Call& call, const RoutingPlan& plan, const ConstTensorView& rows) {
  const ExpertGradient& gradient = call.gradient;
  if (gradient.dw.defined()) {
    PLAIT_RETURN_IF_ERROR(gmm_run::k_grouped(call.context, gradient.rows, rows, plan.expert_rows(), gradient.dw, call.accumulate, true));
  }
  if (!gradient.dbias.defined()) return {};
  return gmm_run::bias_gradient(call.context, rows, plan.expert_rows(), gradient.dbias, call.accumulate);
}

/// The product, and everything else that needs `rows`, expert major, or no rows of peers.
Status multiply(const Call& call, const RoutingPlan& plan, const ConstTensorView& rows, const TensorView& y, Tensor& shared_y) {
  Zone zone(call.context.recorder(), call.product);
  PLAIT_RETURN_IF_ERROR(gmm_run::m_grouped(call.context, rows, call.weight, plan.expert_rows(), call.bias, y, true));
  PLAIT_RETURN_IF_ERROR(expert_gradients(call, plan, rows));
  return multiply_shared(call, shared_y);
}

Result<AllToAllVGmmResult> run_out(const Call& call) {
  AllToAllVGmmResult result;
  PLAIT_ASSIGN_OR_RETURN(const WindowBuffer buffer, WindowBuffer::open(call.context, call.group, call.x.shape[0] * call.row_bytes()));
  copy_elements(call.context, call.x, TensorView(buffer.data(), call.x.dtype, {call.x.shape[0], call.x.shape[1]}));
  call.context.recorder().add(Counter::bytes_copied, call.x.num_bytes());
  PublishedViews views;
  PLAIT_ASSIGN_OR_RETURN(const RoutingPlan plan, agree(call, std::span(&buffer.region(), 1), views));
  PLAIT_ASSIGN_OR_RETURN(const Tensor rows, call.context.empty(call.x.dtype, {plan.num_recv_rows(), call.weight.shape[1]}));
  PLAIT_RETURN_IF_ERROR(deliver(call, plan, buffer, views[0], rows));
  PLAIT_ASSIGN_OR_RETURN(result.y, call.context.empty(call.x.dtype, {plan.num_recv_rows(), call.weight.shape[2]}));
  PLAIT_RETURN_IF_ERROR(multiply(call, plan, rows, result.y, result.shared_y));
  if (call.return_permuted) result.permuted = rows;
  return result;
}

Result<AllToAllVGmmResult> run_home(const Call& call) {
  AllToAllVGmmResult result;
  PublishedViews views;
  PLAIT_ASSIGN_OR_RETURN(const RoutingPlan plan, agree(call, {}, views));
  PLAIT_ASSIGN_OR_RETURN(const WindowBuffer buffer, WindowBuffer::open(call.context, call.group, plan.num_recv_rows() * call.result_row_bytes()));
  const TensorView products(buffer.data(), call.x.dtype, {plan.num_recv_rows(), call.weight.shape[2]});
  PLAIT_RETURN_IF_ERROR(multiply(call, plan, call.x, products, result.shared_y));
  PLAIT_ASSIGN_OR_RETURN(const Exchange exchange, call.group.exchange(name(call.travel), {}, std::span(&buffer.region(), 1)));
  PLAIT_ASSIGN_OR_RETURN(result.y, call.context.empty(call.x.dtype, {plan.num_send_rows(), call.weight.shape[2]}));
  PLAIT_RETURN_IF_ERROR(deliver(call, plan, buffer, exchange.regions[0], result.y));
  return result;
}

}  // namespace

Result<AllToAllVGmmResult> run_unfused(const Call& call) { return call.way == Way::out ? run_out(call) : run_home(call); }

}  // namespace plait::a2av
