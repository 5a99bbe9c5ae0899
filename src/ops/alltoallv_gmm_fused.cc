#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "base/status_macros.h"
#include "ops/alltoallv_gmm.h"
#include "ops/alltoallv_gmm_tiles.h"
#include "ops/grouped_matmul_layout.h"
#include "ops/grouped_matmul_run.h"
#include "routing/fused_call.h"
#include "routing/window_buffer.h"

namespace plait::a2av {
namespace {

/// The rows of one rank that peers read where they lie.
class PublishedRows {
 public:
  static Result<PublishedRows> open(const Call& call);
  const Region& region() const { return buffer_.region(); }
  /// True where the caller's own memory is published: peers must be done with it before the call returns.
  bool in_place() const { return in_place_; }
  /// Copies to the window what peers will read.
  void write(const Call& call, const RoutingPlan& plan) const;
  /// Places of this rank's expert-major rows.
  RowSource find(const Call& call, const RoutingPlan& plan, std::span<const RegionView> views) const;

 private:
  WindowBuffer buffer_;
  bool in_place_ = false;
};

/// In a group of one, rows are read where they are.
bool needs_no_window(const Call& call) { return call.group.size() == 1 && has_dense_rows(call.x); }

Result<PublishedRows> PublishedRows::open(const Call& call) {
  PublishedRows rows;
  if (needs_no_window(call)) return rows;
  if (std::optional<WindowBuffer> found = WindowBuffer::find(call.group, call.x)) {
    rows.buffer_ = *found;
    rows.in_place_ = true;
    return rows;
  }
  PLAIT_ASSIGN_OR_RETURN(rows.buffer_, WindowBuffer::open(call.context, call.group, call.x.shape[0] * call.row_bytes()));
  return rows;
}

void PublishedRows::write(const Call& call, const RoutingPlan& plan) const {
  if (in_place_ || needs_no_window(call)) return;
  Zone zone(call.context.recorder(), Stage::permute);
  const TensorView to(buffer_.data(), call.x.dtype, {call.x.shape[0], call.x.shape[1]});
  Recorder& recorder = call.context.recorder();
  if (!has_dense_rows(call.x)) {
    copy_elements(call.context, call.x, to);
    recorder.add(Counter::bytes_copied, call.x.num_bytes());
    return;
  }
  // Rows for this rank's own experts are read where the caller has them.
  const int64_t first = plan.placement().global(plan.rank(), 0), end = first + plan.placement().experts_per_rank();
  const int64_t own_begin = plan.send_begin(plan.rank(), first), own_end = plan.send_begin(plan.rank(), end);
  copy_rows(call.context, call.x.slice(0, own_begin), to.slice(0, own_begin));
  copy_rows(call.context, call.x.slice(own_end, call.x.shape[0]), to.slice(own_end, call.x.shape[0]));
  recorder.add(Counter::bytes_copied, (call.x.shape[0] - (own_end - own_begin)) * call.row_bytes());
}

RowSource PublishedRows::find(const Call& call, const RoutingPlan& plan, std::span<const RegionView> views) const {
  std::vector<RankRows> ranks;
  for (const RegionView& view : views) ranks.push_back({view.data(), call.row_bytes()});
  RankRows& own = ranks[static_cast<size_t>(plan.rank())];
  own = {buffer_.data(), call.row_bytes()};
  if (has_dense_rows(call.x)) own = {call.x.data, call.x.strides[0] * size_of(call.x.dtype)};
  return RowSource::permuted(plan, ranks);
}

void sum_bias_gradient(const Call& call, const RoutingPlan& plan, const kernels::Rows& rows) {
  if (!call.gradient.dbias.defined()) return;
  Zone zone(call.context.recorder(), Stage::weight_gradient);
  gmm_run::bias_gradient(call.context, rows, call.x.dtype, plan.expert_rows(), call.gradient.dbias, call.accumulate);
}

Status wait_for_peers(Call& call, const RoutingPlan& plan) {
  Zone zone(call.context.recorder(), call.travel);
  return wait_for_results(call.group, plan, call.travel, call.unfinished);
}

/// Rows are read from the ranks that have them.
Result<AllToAllVGmmResult> run_out(Call& call) {
  PLAIT_ASSIGN_OR_RETURN(const PublishedRows published, PublishedRows::open(call));
  PublishedViews views;
  PLAIT_ASSIGN_OR_RETURN(const RoutingPlan plan, agree(call, std::span(&published.region(), 1), views));
  published.write(call, plan);
  PLAIT_ASSIGN_OR_RETURN(const FusedSignals signals, tell_rows_there(call.group, call.travel));

  const RowSource source = published.find(call, plan, views[0]);
  AllToAllVGmmResult result;
  PLAIT_ASSIGN_OR_RETURN(result.y, call.context.empty(call.x.dtype, {plan.num_recv_rows(), call.weight.shape[2]}));
  PLAIT_ASSIGN_OR_RETURN(result.shared_y, shared_result(call));
  if (call.return_permuted) {
    PLAIT_ASSIGN_OR_RETURN(result.permuted, call.context.empty(call.x.dtype, {plan.num_recv_rows(), call.weight.shape[1]}));
    call.context.recorder().add(Counter::bytes_copied, result.permuted.view.num_bytes());
  }
  const TileOperands operands{source.rows(), result.permuted, gmm_layout::rows_of(result.y.view), result.shared_y};
  PairTiles tiles(call, plan, operands);
  PLAIT_RETURN_IF_ERROR(tiles.prepare());
  PLAIT_RETURN_IF_ERROR(tiles.run(signals));
  sum_bias_gradient(call, plan, tiles.rows());
  count_crossing_rows(call.context.recorder(), plan, call.row_bytes(), 0);
  PLAIT_RETURN_IF_ERROR(call.group.signal(results_there, signals.results));
  if (published.in_place()) PLAIT_RETURN_IF_ERROR(wait_for_peers(call, plan));
  return result;
}

/// Results are written to the ranks that they belong to.
Result<AllToAllVGmmResult> run_home(Call& call) {
  const int64_t num_results = call.num_home_rows();
  PLAIT_ASSIGN_OR_RETURN(const WindowBuffer results, WindowBuffer::open(call.context, call.group, num_results * call.result_row_bytes()));
  PublishedViews views;
  PLAIT_ASSIGN_OR_RETURN(const RoutingPlan plan, agree(call, std::span(&results.region(), 1), views));
  PLAIT_ASSIGN_OR_RETURN(const FusedSignals signals, tell_rows_there(call.group, call.travel));

  const RowSink sink = RowSink::permuted(plan, rank_rows(results, views[0], plan.rank(), call.result_row_bytes(), [](int) { return int64_t{0}; }));
  AllToAllVGmmResult result;
  result.y = results.tensor(0, call.x.dtype, {num_results, call.weight.shape[2]});
  PLAIT_ASSIGN_OR_RETURN(result.shared_y, shared_result(call));
  PLAIT_ASSIGN_OR_RETURN(const DenseInput x, DenseInput::make(call.context, call.x));
  const TileOperands operands{gmm_layout::rows_of(x.view), {}, sink.rows(), result.shared_y};
  PairTiles tiles(call, plan, operands);
  PLAIT_RETURN_IF_ERROR(tiles.prepare());
  PLAIT_RETURN_IF_ERROR(tiles.run(signals));
  sum_bias_gradient(call, plan, tiles.rows());
  count_crossing_rows(call.context.recorder(), plan, 0, call.result_row_bytes());
  PLAIT_RETURN_IF_ERROR(wait_for_peers(call, plan));
  return result;
}

}  // namespace

int64_t Call::num_home_rows() const { return std::accumulate(out_counts.begin(), out_counts.end(), int64_t{0}); }
int64_t Call::num_expert_rows() const { return std::accumulate(arrive_counts.begin(), arrive_counts.end(), int64_t{0}); }

Result<RoutingPlan> agree(const Call& call, std::span<const Region> publish, PublishedViews& views) {
  Zone zone(call.context.recorder(), Stage::exchange_counts);
  CallSignature signature;
  signature.operation = call.operation;
  signature.dispatcher = call.fused ? "fused" : "unfused";
  signature.dtype = call.weight.dtype;
  signature.num_experts = static_cast<int64_t>(call.out_counts.size());
  signature.hidden = call.weight.shape[1];
  signature.intermediate = call.weight.shape[2];
  signature.homeward = call.way == Way::home;
  signature.detail = call.flags;
  const ExpertPlacement placement{signature.num_experts, call.group.size()};
  PLAIT_ASSIGN_OR_RETURN(CountsMatrix counts,
                         exchange_counts(call.group, placement, signature, call.out_counts, call.arrive_counts, publish, &views));
  return RoutingPlan(std::move(counts), call.group.rank());
}

Result<Tensor> shared_result(const Call& call) {
  if (!call.shared.x.defined()) return Tensor{};
  return call.context.empty(call.shared.x.dtype, {call.shared.x.shape[0], call.shared.weight.shape[1]});
}

Result<AllToAllVGmmResult> run_fused(Call& call) { return call.way == Way::out ? run_out(call) : run_home(call); }

}  // namespace plait::a2av
