#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "moe/announce.h"
#include "moe/dispatched_rows.h"
#include "moe/expert_path.h"
#include "moe/fused_tiles.h"
#include "routing/row_blocks.h"

/// Dispatcher mc2: the experts' matmuls read rows of x and dy where their owners keep them and write result rows where their owners want
/// them. No row is permuted or received.
namespace plait::moe {
namespace {

/// What a home rank says about each of its entries, in the permuted order: [token | weight].
constexpr int64_t entry_bytes = sizeof(int32_t) + sizeof(float);
SectionLayout entry_layout(int64_t num_entries) {
  constexpr int64_t bytes[] = {sizeof(int32_t), sizeof(float)};
  return SectionLayout(num_entries, bytes);
}

/// Where a home rank wants the rows of its entries, and in backward their dweights: [row | dweight].
SectionLayout result_layout(const LayerCall& call, int64_t num_entries) {
  const int64_t bytes[] = {call.config.hidden * size_of(call.config.dtype), sizeof(float)};
  return SectionLayout(num_entries, bytes);
}

Result<WindowBuffer> write_entries(LayerCall& call, const LayerState& state, int64_t num_entries) {
  StageScope scope(call, Stage::permute);
  const SectionLayout layout = entry_layout(num_entries);
  PLAIT_ASSIGN_OR_RETURN(WindowBuffer entries, WindowBuffer::open(call.context, call.group, layout.bytes()));
  auto* tokens = reinterpret_cast<int32_t*>(entries.data() + layout.offset(0));
  auto* weights = reinterpret_cast<float*>(entries.data() + layout.offset(1));
  const int64_t k = call.config.router.top_k;
  const auto* position = state.position.as<int32_t>();
  for (int64_t i = 0; i < state.position.view.shape[0]; ++i) {
    if (position[i] < 0) continue;
    tokens[position[i]] = static_cast<int32_t>(i / k);
    weights[position[i]] = state.weights.as<float>()[i];
  }
  return entries;
}

/// All ranks' entries for this rank's experts, expert major.
Status read_entries(const LayerCall& call, const RoutingPlan& plan, const WindowBuffer& own, std::span<const RegionView> views,
                    DispatchedRows& rows) {
  PLAIT_ASSIGN_OR_RETURN(rows.tokens, call.context.empty(DType::i32, {plan.num_recv_rows()}));
  PLAIT_ASSIGN_OR_RETURN(rows.weights, call.context.empty(DType::f32, {plan.num_recv_rows(), 1}));
  for_each_rank_block(plan, [&](const RankBlock& block) {
    const std::byte* entries = block.source == plan.rank() ? own.data() : views[static_cast<size_t>(block.source)].data();
    const SectionLayout layout = entry_layout(plan.num_send_rows(block.source));
    const auto bytes = static_cast<size_t>(block.num_rows) * sizeof(int32_t);
    const int64_t at = block.permuted_row * int64_t{sizeof(int32_t)};
    std::memcpy(rows.tokens.as<int32_t>() + block.expert_row, entries + layout.offset(0) + at, bytes);
    std::memcpy(rows.weights.as<float>() + block.expert_row, entries + layout.offset(1) + at, bytes);
  });
  return {};
}

RowSink results_at(const LayerCall& call, const RoutingPlan& plan, const WindowBuffer& own, std::span<const RegionView> views, size_t section) {
  const int64_t row_bytes = section == 0 ? call.config.hidden * size_of(call.config.dtype) : int64_t{sizeof(float)};
  return RowSink::permuted(
      plan, rank_rows(own, views, plan.rank(), row_bytes, [&](int rank) { return result_layout(call, plan.num_send_rows(rank)).offset(section); }));
}

Result<HomeRows> forward(LayerCall& call, const ConstTensorView& x, std::span<const int64_t> local_counts, LayerState& state) {
  const int64_t num_entries = std::accumulate(local_counts.begin(), local_counts.end(), int64_t{0});
  DispatchedRows dispatched;
  PLAIT_ASSIGN_OR_RETURN(const WindowBuffer entries, write_entries(call, state, num_entries));
  PLAIT_ASSIGN_OR_RETURN(dispatched.x, TokenRows::open(call, x.shape[0]));
  PLAIT_ASSIGN_OR_RETURN(const WindowBuffer results, WindowBuffer::open(call.context, call.group, result_layout(call, num_entries).bytes()));
  PublishedViews views;
  const Region publish[] = {entries.region(), dispatched.x.own.region(), results.region()};
  PLAIT_ASSIGN_OR_RETURN(CountsMatrix counts, announce_forward(call, local_counts, publish, views));
  state.plan = RoutingPlan(std::move(counts), call.group.rank());
  dispatched.x.write(call, x);
  dispatched.x.views = std::move(views[1]);
  PLAIT_ASSIGN_OR_RETURN(const FusedSignals signals, tell_rows_there(call.group, Stage::dispatch));
  PLAIT_RETURN_IF_ERROR(read_entries(call, state.plan, entries, views[0], dispatched));

  PLAIT_ASSIGN_OR_RETURN(const Tensor h, call.context.empty(call.config.dtype, {state.plan.num_recv_rows(), call.hidden_columns()}));
  const RowSource x_rows = dispatched.find(call, state.plan, dispatched.x, x);
  const RowSink result_rows = results_at(call, state.plan, results, views[2], 0);
  const FusedForward rows{x_rows.rows(), result_rows.rows(), h};
  PLAIT_RETURN_IF_ERROR(run_tiles(call, state.plan, rows, signals, Gaps::filled));
  const int64_t row_bytes = x.shape[1] * size_of(x.dtype);
  count_crossing_rows(call.context.recorder(), state.plan, row_bytes + entry_bytes, row_bytes);
  if (call.config.recompute) {
    dispatched.x = {};
  } else {
    state.h = h;
  }
  state.dispatched = std::make_shared<const DispatchedRows>(std::move(dispatched));
  return HomeRows{results.tensor(0, call.config.dtype, {num_entries, call.config.hidden}), {}, {}};
}

Result<EntryGradients> backward(LayerCall& call, const ConstTensorView& x, const LayerState& state, const ConstTensorView& dy,
                                const LayerGradients& gradients) {
  const Context& context = call.context;
  const LayerConfig& config = call.config;
  const RoutingPlan& plan = state.plan;
  const int64_t num_entries = plan.num_send_rows();
  TokenRows dy_rows, x_rows = state.dispatched->x;
  PLAIT_ASSIGN_OR_RETURN(dy_rows, TokenRows::open(call, dy.shape[0]));
  if (config.recompute) {
    PLAIT_ASSIGN_OR_RETURN(x_rows, TokenRows::open(call, x.shape[0]));
  }
  const SectionLayout layout = result_layout(call, num_entries);
  PLAIT_ASSIGN_OR_RETURN(const WindowBuffer results, WindowBuffer::open(context, call.group, layout.bytes()));
  PublishedViews views;
  const Region publish[] = {dy_rows.own.region(), results.region(), config.recompute ? x_rows.own.region() : Region()};
  PLAIT_RETURN_IF_ERROR(announce_backward(call, plan, publish, views));
  dy_rows.write(call, dy);
  dy_rows.views = std::move(views[0]);
  if (config.recompute) {
    x_rows.write(call, x);
    x_rows.views = std::move(views[2]);
  }
  PLAIT_ASSIGN_OR_RETURN(const FusedSignals signals, tell_rows_there(call.group, Stage::backward_combine));

  const int64_t num_rows = plan.num_recv_rows();
  FusedBackward rows;
  const RowSource x_source = state.dispatched->find(call, plan, x_rows, x), dy_source = state.dispatched->find(call, plan, dy_rows, dy);
  const RowSink dx_sink = results_at(call, plan, results, views[1], 0), dweights_sink = results_at(call, plan, results, views[1], 1);
  rows.x = x_source.rows();
  rows.dy = dy_source.rows();
  rows.dx = dx_sink.rows();
  rows.dweights = dweights_sink.rows();
  rows.weights = state.dispatched->weights.as<float>();
  PLAIT_ASSIGN_OR_RETURN(const Tensor g, context.empty(config.dtype, {num_rows, config.intermediate}));
  PLAIT_ASSIGN_OR_RETURN(const Tensor dh, context.empty(config.dtype, {num_rows, call.hidden_columns()}));
  Tensor h = state.h;
  if (config.recompute) {
    PLAIT_ASSIGN_OR_RETURN(h, context.empty(config.dtype, {num_rows, call.hidden_columns()}));
  }
  rows.h = h;
  rows.g = g;
  rows.dh = dh;
  PLAIT_RETURN_IF_ERROR(run_tiles(call, plan, rows, gradients, signals, Gaps::filled));
  const int64_t row_bytes = dy.shape[1] * size_of(dy.dtype);
  count_crossing_rows(call.context.recorder(), plan, config.recompute ? 2 * row_bytes : row_bytes, row_bytes + int64_t{sizeof(float)});
  return EntryGradients{{results.tensor(layout.offset(0), config.dtype, {num_entries, config.hidden}), {}, {}},
                        results.tensor(layout.offset(1), DType::f32, {num_entries, 1})};
}

}  // namespace

const ExpertPath mc2_path = {forward, backward, await_results};

}  // namespace plait::moe
