#include "ops/alltoallv_gmm.h"

#include <fmt/format.h>

#include <utility>

#include "base/status_macros.h"
#include "ops/alltoallv_gmm_check.h"
#include "routing/fused_call.h"

namespace plait {
namespace {

using a2av::Call;
using a2av::Way;

ConstTensorView oriented(const ConstTensorView& weight, bool transposed) { return transposed ? weight.transposed(1, 2) : weight; }
TensorView oriented(const TensorView& gradient, bool transposed) { return transposed ? gradient.transposed(1, 2) : gradient; }
/// The same for a matrix.
template <typename View>
View oriented_matrix(const View& matrix, bool transposed) {
  return transposed ? matrix.transposed(0, 1) : matrix;
}

std::string flags_of(const AllToAllVGmmOptions& options) {
  return fmt::format("trans_weight {}, bias {}, shared weight {}, trans_shared_weight {}", options.trans_weight, options.bias.defined(),
                     options.shared_weight.defined(), options.trans_shared_weight);
}

/// How a call's rows travel and what its parts are counted as.
struct Kind {
  std::string_view operation;
  Way way;
  Stage product, travel;
};
constexpr Kind forward_out{"alltoallv_grouped_matmul", Way::out, Stage::gate_up, Stage::dispatch};
constexpr Kind forward_home{"grouped_matmul_alltoallv", Way::home, Stage::down, Stage::combine};
constexpr Kind backward_of_out{"alltoallv_grouped_matmul_backward", Way::home, Stage::backward_gate_up, Stage::backward_dispatch};
constexpr Kind backward_of_home{"grouped_matmul_alltoallv_backward", Way::out, Stage::backward_down, Stage::backward_combine};

/// The product x * weight with rows that leave this rank (`send`) and come to it (`recv`).
Call make_call(const Context& context, Group& group, const Kind& kind, const ConstTensorView& x, const ConstTensorView& weight,
               std::span<const int64_t> send, std::span<const int64_t> recv, const AllToAllVGmmOptions& options) {
  const bool out = kind.way == Way::out;
  return {.context = context,
          .group = group,
          .operation = kind.operation,
          .way = kind.way,
          .product = kind.product,
          .travel = kind.travel,
          .x = x,
          .weight = weight,
          .bias = {},
          .out_counts = out ? send : recv,
          .arrive_counts = out ? recv : send,
          .flags = flags_of(options),
          .fused = options.fused};
}

Result<AllToAllVGmmResult> finish(Call& call, Status checked) {
  Result<AllToAllVGmmResult> result = AllToAllVGmmResult{};
  if (!checked.ok()) {
    result = std::move(checked);
  } else {
    result = call.fused ? a2av::run_fused(call) : a2av::run_unfused(call);
  }
  if (result.ok()) return result;
  return stop_group(call.group, call.operation, call.travel, call.unfinished, result.status());
}

Status check_forward(const Call& call, std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts) {
  PLAIT_RETURN_IF_ERROR(a2av::check_product(call, call.operation, {"send_counts", send_counts}, {"recv_counts", recv_counts}));
  PLAIT_RETURN_IF_ERROR(a2av::check_shared(call.operation, call.shared.x, call.shared.weight));
  if (!call.return_permuted || call.way == Way::out) return {};
  return Status::invalid_argument(
      fmt::format("{}: return_permuted is set, but no rows arrive at experts here: the expert-major rows are x itself", call.operation));
}

Result<AllToAllVGmmResult> forward(const Context& context, Group& group, const Kind& kind, const ConstTensorView& x, const ConstTensorView& weight,
                                   std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts, const AllToAllVGmmOptions& options) {
  Call call = make_call(context, group, kind, x, oriented(weight, options.trans_weight), send_counts, recv_counts, options);
  call.bias = options.bias;
  call.return_permuted = options.return_permuted;
  call.shared = {options.shared_x, oriented_matrix(options.shared_weight, options.trans_shared_weight)};
  return finish(call, check_forward(call, send_counts, recv_counts));
}

/// The conjugate operator on dy, with both lists of counts and the weight turned round; the parameters' gradients beside it.
Result<AllToAllVGmmInputGradients> backward(const Context& context, Group& group, const Kind& kind, const AllToAllVGmmUpstream& upstream,
                                            const ConstTensorView& rows, const ConstTensorView& weight, std::span<const int64_t> send_counts,
                                            std::span<const int64_t> recv_counts, const AllToAllVGmmGradients& gradients,
                                            const AllToAllVGmmOptions& options) {
  Call call = make_call(context, group, kind, upstream.dy, oriented(weight, !options.trans_weight), recv_counts, send_counts, options);
  call.gradient = {rows, oriented(gradients.weight, options.trans_weight), gradients.bias};
  call.accumulate = gradients.accumulate;
  if (upstream.dshared_y.defined()) {
    call.shared = {upstream.dshared_y, oriented_matrix(options.shared_weight, !options.trans_shared_weight)};
    call.shared_gradient = {options.shared_x, upstream.dshared_y, oriented_matrix(gradients.shared_weight, options.trans_shared_weight)};
  }
  Status status =
      a2av::check_product(call, fmt::format("{}, dx = dy * weight^T", call.operation), {"recv_counts", recv_counts}, {"send_counts", send_counts});
  if (status.ok()) status = a2av::check_gradients(call.operation, upstream, rows, call.num_expert_rows(), weight, gradients, options);
  PLAIT_ASSIGN_OR_RETURN(AllToAllVGmmResult result, finish(call, std::move(status)));
  return AllToAllVGmmInputGradients{std::move(result.y), std::move(result.shared_y)};
}

}  // namespace

Result<AllToAllVGmmResult> alltoallv_grouped_matmul(const Context& context, Group& group, const ConstTensorView& x, const ConstTensorView& weight,
                                                    std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts,
                                                    const AllToAllVGmmOptions& options) {
  return forward(context, group, forward_out, x, weight, send_counts, recv_counts, options);
}

Result<AllToAllVGmmResult> grouped_matmul_alltoallv(const Context& context, Group& group, const ConstTensorView& x, const ConstTensorView& weight,
                                                    std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts,
                                                    const AllToAllVGmmOptions& options) {
  return forward(context, group, forward_home, x, weight, send_counts, recv_counts, options);
}

Result<AllToAllVGmmInputGradients> alltoallv_grouped_matmul_backward(const Context& context, Group& group, const AllToAllVGmmUpstream& upstream,
                                                                     const ConstTensorView& permuted, const ConstTensorView& weight,
                                                                     std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts,
                                                                     const AllToAllVGmmGradients& gradients, const AllToAllVGmmOptions& options) {
  return backward(context, group, backward_of_out, upstream, permuted, weight, send_counts, recv_counts, gradients, options);
}

Result<AllToAllVGmmInputGradients> grouped_matmul_alltoallv_backward(const Context& context, Group& group, const AllToAllVGmmUpstream& upstream,
                                                                     const ConstTensorView& x, const ConstTensorView& weight,
                                                                     std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts,
                                                                     const AllToAllVGmmGradients& gradients, const AllToAllVGmmOptions& options) {
  return backward(context, group, backward_of_home, upstream, x, weight, send_counts, recv_counts, gradients, options);
}

}  // namespace plait
