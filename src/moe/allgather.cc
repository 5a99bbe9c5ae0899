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
#include "moe/gathered_tokens.h"
#include "ops/dense_rows.h"
#include "ops/grouped_matmul_layout.h"
#include "routing/fused_call.h"
#include "routing/state_dump.h"

/// Dispatcher allgather: every rank gathers all tokens with their routing and computes its own experts' rows; results go home as rows or as
/// sums of tree nodes, whichever is less.
namespace plait::moe {
namespace {

/// A rank's routing as its peers read it: [number of tokens | ids (T,k) | weights (T,k)].
struct PublishedRouting {
  static constexpr int64_t header_bytes = 64;
  static int64_t bytes(int64_t num_entries) { return header_bytes + num_entries * int64_t{sizeof(int32_t) + sizeof(float)}; }

  static Result<WindowBuffer> write(LayerCall& call, const LayerState& state) {
    StageScope scope(call, Stage::permute);
    const int64_t n = state.ids.view.num_elements();
    PLAIT_ASSIGN_OR_RETURN(WindowBuffer buffer, WindowBuffer::open(call.context, call.group, bytes(n)));
    std::memcpy(buffer.data(), &n, sizeof(n));
    if (n == 0) return buffer;
    std::memcpy(buffer.data() + header_bytes, state.ids.view.data, static_cast<size_t>(n) * sizeof(int32_t));
    std::memcpy(buffer.data() + header_bytes + n * int64_t{sizeof(int32_t)}, state.weights.view.data, static_cast<size_t>(n) * sizeof(float));
    return buffer;
  }
  static void read(const std::byte* data, const RoutingPlan& plan, int64_t sum_entries, GatheredTokens& tokens) {
    int64_t n = 0;
    std::memcpy(&n, data, sizeof(n));
    const auto* ids = reinterpret_cast<const int32_t*>(data + header_bytes);
    const auto* weights = reinterpret_cast<const float*>(ids + n);
    tokens.add_home(plan, std::span(ids, static_cast<size_t>(n)), std::span(weights, static_cast<size_t>(n)), sum_entries);
  }
};

int64_t sum_entries(const LayerCall& call) { return least_sum_entries(call.config.dtype); }

/// This rank's own parcels, known before any exchange.
ParcelPlan own_parcels(const LayerCall& call, const LayerState& state) {
  const auto n = static_cast<size_t>(state.ids.view.num_elements());
  return ParcelPlan({std::span(state.ids.as<int32_t>(), n), std::span(state.weights.as<float>(), n), call.config.router.top_k}, call.placement(),
                    sum_entries(call), call.config.combine);
}

/// All ranks' rows of tokens as one matrix, copied as they become readable. In a group of one: nothing.
Result<Tensor> gather(LayerCall& call, const RoutingPlan& plan, const GatheredTokens& tokens, const TokenRows& rows, const Arrival& arrival) {
  if (call.group.size() == 1) return Tensor{};
  StageScope scope(call, arrival.stage);
  const DType dtype = call.config.dtype;
  const int64_t hidden = call.config.hidden;
  PLAIT_ASSIGN_OR_RETURN(Tensor all, call.context.empty(dtype, {tokens.first_token.back(), hidden}));
  for (int i = 0; i < call.group.size(); ++i) {
    const int peer = (call.group.rank() + i) % call.group.size();
    const Status arrived = call.group.wait(peer, arrival.channel, arrival.value, name(arrival.stage));
    if (!arrived.ok()) return without_rows(plan, arrived);
    const auto p = static_cast<size_t>(peer);
    const ConstTensorView from(rows.views[p].data(), dtype, {tokens.num_tokens(peer), hidden});
    copy_rows(call.context, from, all.view.slice(tokens.first_token[p], tokens.first_token[p + 1]));
  }
  call.context.recorder().add(Counter::bytes_copied, all.view.num_bytes());
  return all;
}

/// Rows of the gathered tokens in expert-major order; `own` is read where nothing was gathered.
RowSource find(const DispatchedRows& dispatched, const RoutingPlan& plan, const Tensor& gathered, const ConstTensorView& own) {
  const ConstTensorView rows = gathered.defined() ? ConstTensorView(gathered.view) : own;
  const std::vector<RankRows> ranks(static_cast<size_t>(plan.placement().num_ranks), RankRows{rows.data, rows.strides[0] * size_of(rows.dtype)});
  return RowSource::of_tokens(plan, ranks, std::span(dispatched.tokens.as<int32_t>(), static_cast<size_t>(plan.num_recv_rows())));
}

std::vector<std::byte*> home_memory(const WindowBuffer& own, std::span<const RegionView> views, int rank) {
  std::vector<std::byte*> homes;
  for (const WritableRankRows& home : rank_rows(own, views, rank, 0, [](int) { return int64_t{0}; })) homes.push_back(home.data);
  return homes;
}

/// Sends home what the tiles left in `rows` and tells the peers.
Status send_home(LayerCall& call, const GatheredTokens& tokens, const RoutingPlan& plan, const ConstTensorView& rows, bool forward,
                 std::span<std::byte* const> homes, uint64_t results) {
  StageScope scope(call, forward ? Stage::combine : Stage::backward_dispatch);
  const int64_t sent = write_parcels(call, tokens, plan, rows, forward, homes);
  Recorder& recorder = call.context.recorder();
  const int64_t peers = call.group.size() - 1, row_bytes = call.config.hidden * size_of(rows.dtype);
  const int64_t own = tokens.num_tokens(plan.rank()) * peers, others = tokens.first_token.back() - tokens.num_tokens(plan.rank());
  recorder.add(Counter::rows_sent, own + sent);
  recorder.add(Counter::bytes_sent, (own + sent) * row_bytes);
  recorder.add(Counter::rows_received, others);
  recorder.add(Counter::bytes_received, others * row_bytes);
  return call.group.signal(results_there, results);
}

HomeRows home_rows(const LayerCall& call, const WindowBuffer& results, const SectionLayout& layout, std::shared_ptr<const ParcelPlan> parcels) {
  const int64_t hidden = call.config.hidden;
  const Tensor rows = results.tensor(layout.offset(row_section), call.config.dtype, {parcels->num_rows(), hidden});
  const Tensor sums = results.tensor(layout.offset(sum_section), DType::f32, {parcels->num_sums(), hidden});
  return {rows, std::move(parcels), sums};
}

/// Takes in all ranks' routing and, once they are readable, their rows of x.
Status receive(LayerCall& call, const RoutingPlan& plan, const WindowBuffer& own, const PublishedViews& views, const Arrival& arrival,
               DispatchedRows& dispatched, GatheredTokens& tokens) {
  tokens.top_k = call.config.router.top_k;
  tokens.combine = call.config.combine;
  for (int rank = 0; rank < call.group.size(); ++rank) {
    PublishedRouting::read(rank == plan.rank() ? own.data() : views[0][static_cast<size_t>(rank)].data(), plan, sum_entries(call), tokens);
  }
  const int64_t num_rows = plan.num_recv_rows();
  PLAIT_ASSIGN_OR_RETURN(dispatched.tokens, call.context.empty(DType::i32, {num_rows}));
  PLAIT_ASSIGN_OR_RETURN(dispatched.weights, call.context.empty(DType::f32, {num_rows, 1}));
  tokens.sort_entries(std::span(dispatched.tokens.as<int32_t>(), static_cast<size_t>(num_rows)),
                      std::span(dispatched.weights.as<float>(), static_cast<size_t>(num_rows)));
  PLAIT_ASSIGN_OR_RETURN(tokens.x, gather(call, plan, tokens, dispatched.x, arrival));
  return {};
}

Result<HomeRows> forward(LayerCall& call, const ConstTensorView& x, std::span<const int64_t> local_counts, LayerState& state) {
  auto parcels = std::make_shared<const ParcelPlan>(own_parcels(call, state));
  const SectionLayout layout = parcel_layout(call, std::accumulate(local_counts.begin(), local_counts.end(), int64_t{0}), *parcels);
  DispatchedRows dispatched;
  auto tokens = std::make_shared<GatheredTokens>();
  PLAIT_ASSIGN_OR_RETURN(const WindowBuffer routing, PublishedRouting::write(call, state));
  PLAIT_ASSIGN_OR_RETURN(dispatched.x, TokenRows::open(call, x.shape[0]));
  PLAIT_ASSIGN_OR_RETURN(const WindowBuffer results, WindowBuffer::open(call.context, call.group, layout.bytes()));
  PublishedViews views;
  const Region publish[] = {routing.region(), dispatched.x.own.region(), results.region()};
  PLAIT_ASSIGN_OR_RETURN(CountsMatrix counts, announce_forward(call, local_counts, publish, views));
  const RoutingPlan& plan = state.plan = RoutingPlan(std::move(counts), call.group.rank());
  dispatched.x.write(call, x);
  dispatched.x.views = std::move(views[1]);
  PLAIT_ASSIGN_OR_RETURN(const FusedSignals signals, tell_rows_there(call.group, Stage::dispatch));
  PLAIT_RETURN_IF_ERROR(receive(call, plan, routing, views, signals.rows, dispatched, *tokens));

  PLAIT_ASSIGN_OR_RETURN(const Tensor h, call.context.empty(call.config.dtype, {plan.num_recv_rows(), call.hidden_columns()}));
  PLAIT_ASSIGN_OR_RETURN(const Tensor rows, call.context.empty(call.config.dtype, {plan.num_recv_rows(), call.config.hidden}));
  const RowSource x_rows = find(dispatched, plan, tokens->x, x);
  PLAIT_RETURN_IF_ERROR(run_tiles(call, plan, FusedForward{x_rows.rows(), gmm_layout::rows_of(rows.view), h}, {signals.rows, 0}, Gaps::left));
  PLAIT_RETURN_IF_ERROR(send_home(call, *tokens, plan, rows, true, home_memory(results, views[2], plan.rank()), signals.results));
  dispatched.x = {};
  if (call.config.recompute) {
    tokens->x = {};
  } else {
    state.h = h;
  }
  dispatched.gathered = std::move(tokens);
  state.dispatched = std::make_shared<const DispatchedRows>(std::move(dispatched));
  return home_rows(call, results, layout, std::move(parcels));
}

/// The entries' dweights go straight home, behind no parcel.
RowSink dweights_at(const RoutingPlan& plan, const WindowBuffer& own, std::span<const RegionView> views) {
  return RowSink::permuted(plan, rank_rows(own, views, plan.rank(), int64_t{sizeof(float)}, [](int) { return int64_t{0}; }));
}

Result<EntryGradients> backward(LayerCall& call, const ConstTensorView& x, const LayerState& state, const ConstTensorView& dy,
                                const LayerGradients& gradients) {
  const Context& context = call.context;
  const LayerConfig& config = call.config;
  const RoutingPlan& plan = state.plan;
  const GatheredTokens& tokens = *state.dispatched->gathered;
  auto parcels = std::make_shared<const ParcelPlan>(tokens.homes[static_cast<size_t>(plan.rank())].parcels);
  const SectionLayout layout = parcel_layout(call, plan.num_send_rows(), *parcels);
  TokenRows dy_rows, x_rows;
  PLAIT_ASSIGN_OR_RETURN(dy_rows, TokenRows::open(call, dy.shape[0]));
  if (config.recompute) {
    PLAIT_ASSIGN_OR_RETURN(x_rows, TokenRows::open(call, x.shape[0]));
  }
  PLAIT_ASSIGN_OR_RETURN(const WindowBuffer results, WindowBuffer::open(context, call.group, layout.bytes()));
  PublishedViews views;
  const Region publish[] = {dy_rows.own.region(), results.region(), x_rows.own.region()};
  PLAIT_RETURN_IF_ERROR(announce_backward(call, plan, publish, views));
  dy_rows.write(call, dy);
  dy_rows.views = std::move(views[0]);
  x_rows.write(call, x);
  x_rows.views = std::move(views[2]);
  PLAIT_ASSIGN_OR_RETURN(const FusedSignals signals, tell_rows_there(call.group, Stage::backward_combine));
  PLAIT_ASSIGN_OR_RETURN(const Tensor all_dy, gather(call, plan, tokens, dy_rows, signals.rows));
  Tensor all_x = tokens.x, h = state.h;
  const int64_t num_rows = plan.num_recv_rows();
  if (config.recompute) {
    PLAIT_ASSIGN_OR_RETURN(all_x, gather(call, plan, tokens, x_rows, signals.rows));
    PLAIT_ASSIGN_OR_RETURN(h, context.empty(config.dtype, {num_rows, call.hidden_columns()}));
  }
  PLAIT_ASSIGN_OR_RETURN(const Tensor g, context.empty(config.dtype, {num_rows, config.intermediate}));
  PLAIT_ASSIGN_OR_RETURN(const Tensor dh, context.empty(config.dtype, {num_rows, call.hidden_columns()}));
  PLAIT_ASSIGN_OR_RETURN(const Tensor dx, context.empty(config.dtype, {num_rows, config.hidden}));
  const RowSource x_source = find(*state.dispatched, plan, all_x, x), dy_source = find(*state.dispatched, plan, all_dy, dy);
  const RowSink dweights = dweights_at(plan, results, views[1]);
  FusedBackward rows{
      x_source.rows(), dy_source.rows(), gmm_layout::rows_of(dx.view), dweights.rows(), state.dispatched->weights.as<float>(), h, g, dh};
  PLAIT_RETURN_IF_ERROR(run_tiles(call, plan, rows, gradients, {signals.rows, 0}, Gaps::left));
  PLAIT_RETURN_IF_ERROR(send_home(call, tokens, plan, dx, false, home_memory(results, views[1], plan.rank()), signals.results));
  const Tensor entry_dweights = results.tensor(layout.offset(dweight_section), DType::f32, {plan.num_send_rows(), 1});
  return EntryGradients{home_rows(call, results, layout, std::move(parcels)), entry_dweights};
}

}  // namespace

const ExpertPath allgather_path = {forward, backward, await_results};

}  // namespace plait::moe
