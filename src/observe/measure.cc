#include "observe/measure.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/arena.h"
#include "base/status_macros.h"
#include "observe/replay_group.h"
#include "plait/counters.h"
#include "plait/env.h"
#include "routing/row_blocks.h"

namespace plait {
namespace {

double milliseconds(int64_t ns) { return static_cast<double>(ns) * 1e-6; }

double sum_stages(const Recorder& recorder, std::initializer_list<Stage> stages) {
  int64_t ns = 0;
  for (Stage stage : stages) ns += recorder.stage_ns(stage);
  return milliseconds(ns);
}

void take_stages(const Recorder& recorder, StepSample& sample) {
  sample.dispatch = sum_stages(recorder, {Stage::dispatch, Stage::backward_dispatch});
  sample.combine = sum_stages(recorder, {Stage::combine, Stage::backward_combine});
  sample.comm = sample.dispatch + sample.combine + sum_stages(recorder, {Stage::exchange_counts});
  sample.gmm = sum_stages(recorder, {Stage::gate_up, Stage::down, Stage::backward_gate_up, Stage::backward_down, Stage::weight_gradient});
  sample.permute = sum_stages(recorder, {Stage::permute, Stage::weighted_sum});
  sample.host = std::max(0.0, sample.step - sample.comm - sample.gmm - sample.permute);
}

Status run_step(LayerRun& run, Dispatcher dispatcher, bool backward) {
  PLAIT_RETURN_IF_ERROR(run.forward(dispatcher));
  return backward ? run.backward() : Status();
}

/// Lets the record go and brings the releases of its regions to their owners: the next step's peak of window memory must not have them.
Status drop_record(LayerRun& run, ReplayGroup& record) {
  int64_t num_views = record.num_views();
  run.drop_state();
  record.clear();
  do {  // a barrier carries the releases of at least two regions of each rank
    PLAIT_RETURN_IF_ERROR(run.group().barrier("measurement"));
    num_views -= 2 * int64_t{run.group().size()};
  } while (num_views > 0);
  return {};
}

/// The calls of a run go through another group for a while.
class GroupScope {
 public:
  GroupScope(LayerRun& run, Group& group) : run_(run), before_(run.group()) { run.set_group(group); }
  ~GroupScope() { run_.set_group(before_); }
  GroupScope(const GroupScope&) = delete;
  GroupScope& operator=(const GroupScope&) = delete;

 private:
  LayerRun& run_;
  Group& before_;
};

void take_waits(const Recorder& recorder, StepSample& sample) {
  const std::vector<int64_t>& waits = recorder.peer_wait_ns();
  const auto longest = std::max_element(waits.begin(), waits.end());
  if (longest == waits.end() || *longest == 0) return;
  sample.waited = milliseconds(*longest);
  sample.waited_for = static_cast<int>(longest - waits.begin());
}

/// One direction: rows to the experts together with the exchange of counts, or rows home.
Status move_rows(LayerRun& run, const RoutingPlan& plan, bool home) {
  Group& group = run.group();
  int64_t row_bytes = run.config().hidden * size_of(run.config().dtype);
  int64_t num_own = home ? plan.num_recv_rows() : plan.num_send_rows(), num_other = home ? plan.num_send_rows() : plan.num_recv_rows();
  PLAIT_ASSIGN_OR_RETURN(Region region, group.allocate(num_own * row_bytes));
  PLAIT_ASSIGN_OR_RETURN(Buffer rows, run.context().scratch(num_other * row_bytes));
  PublishedViews views;
  if (!home) {
    std::vector<int64_t> counts;
    for (int64_t g = 0; g < plan.placement().num_experts; ++g) counts.push_back(plan.counts().at(group.rank(), g));
    CallSignature signature;
    signature.operation = "exchange alone";
    PLAIT_ASSIGN_OR_RETURN(CountsMatrix matrix, exchange_counts(group, plan.placement(), signature, counts, {}, {&region, 1}, &views));
  } else {
    PLAIT_ASSIGN_OR_RETURN(Exchange exchange, group.exchange("exchange alone", {}, {&region, 1}));
    views = std::move(exchange.regions);
  }
  std::byte* destination = rows.get();
  RowBlocks blocks = home ? combine_blocks(plan, std::span(&row_bytes, 1), std::span(&destination, 1))
                          : dispatch_blocks(plan, std::span(&row_bytes, 1), std::span(&destination, 1));
  return group.all_to_all_v(run.context(), "exchange alone", region, views[0], blocks.send, blocks.recv);
}

}  // namespace

Result<int> threads_per_rank(const Case& run_case) {
  if (run_case.threads > 0) return run_case.threads;
  PLAIT_ASSIGN_OR_RETURN(Env env, Env::read());
  return env.threads > 0 ? env.threads : std::max(1, usable_cpus() / std::max(1, run_case.ranks));
}

Result<LayerRun> LayerRun::create(const Context& context, Group& group, const Case& run_case, CaseInputs inputs) {
  LayerRun run;
  run.context_ = &context;
  run.group_ = &group;
  run.config_ = run_case.layer;
  run.inputs_ = std::move(inputs);
  run.given_ = run.inputs_.given();
  int64_t tokens = run.inputs_.x.view.shape[0], hidden = run_case.layer.hidden;
  PLAIT_ASSIGN_OR_RETURN(run.parameters_, train::LayerParameters::create(context, run_case.layer, group.rank(), group.size(), run_case.seed));
  PLAIT_ASSIGN_OR_RETURN(run.y_, context.empty(run_case.layer.dtype, {tokens, hidden}));
  PLAIT_ASSIGN_OR_RETURN(run.dx_, context.empty(run_case.layer.dtype, {tokens, hidden}));
  PLAIT_ASSIGN_OR_RETURN(run.dweights_, context.empty(DType::f32, {tokens, run_case.layer.router.top_k}));
  return run;
}

Status LayerRun::forward(Dispatcher dispatcher) {
  config_.dispatcher = dispatcher;
  state_ = {};  // its memory and its window regions serve the next call
  PLAIT_ASSIGN_OR_RETURN(state_, layer_forward(*context_, *group_, config_, parameters_.weights(), inputs_.x, y_, given_));
  return {};
}

Status LayerRun::backward() {
  TensorView dweights = given_.ids.defined() ? dweights_.view : TensorView();
  return layer_backward(*context_, *group_, config_, parameters_.weights(), inputs_.x, state_, inputs_.dy, dx_, parameters_.gradients(), dweights);
}

std::vector<NamedResult> LayerRun::results(bool backward) const {
  std::vector<NamedResult> results{{"y", y_}};
  if (!backward) return results;
  bool given = given_.ids.defined();
  results.push_back({"dx", dx_});
  if (given) results.push_back({"dweights", dweights_});
  for (const train::Parameter& item : parameters_.set().items()) {
    bool of_router = item.spec.id == train::Stream::router || item.spec.id == train::Stream::router_bias;
    if (!item.gradient.defined() || (of_router && given)) continue;
    results.push_back({train::gradient_name(item.spec.id), item.gradient});
  }
  return results;
}

Result<StepSample> measure_step(LayerRun& run, Dispatcher dispatcher, bool backward) {
  Recorder& recorder = run.context().recorder();
  Group& group = run.group();
  run.drop_state();
  PLAIT_RETURN_IF_ERROR(group.barrier("measurement"));
  recorder.reset();
  run.context().arena().reset_peak();
  group.reset_peak_window_bytes();
  StepSample sample;
  int64_t begin = now_ns();
  PLAIT_RETURN_IF_ERROR(run.forward(dispatcher));
  int64_t middle = now_ns();
  if (backward) PLAIT_RETURN_IF_ERROR(run.backward());
  int64_t end = now_ns();
  sample.step = milliseconds(end - begin);
  sample.forward = milliseconds(middle - begin);
  sample.backward = milliseconds(end - middle);
  take_stages(recorder, sample);
  sample.ran = run.state().dispatcher;
  take_waits(recorder, sample);
  run.state().dispatcher_reason.copy(sample.reason.data(), sample.reason.size() - 1);
  sample.tiles = recorder.value(Counter::tiles);
  sample.chains_late = recorder.value(Counter::chains_late);
  sample.early_tiles = recorder.value(Counter::early_tiles);
  sample.bytes_sent = recorder.value(Counter::bytes_sent);
  sample.peak_bytes = run.context().arena().peak_bytes() + group.peak_window_bytes();
  sample.resident_bytes = resident_bytes();
  PLAIT_RETURN_IF_ERROR(group.barrier("measurement"));
  return sample;
}

Result<double> measure_compute(LayerRun& run, Dispatcher dispatcher, bool backward) {
  Group& group = run.group();
  Recorder& recorder = run.context().recorder();
  ReplayGroup record(group);
  double ms = 0;
  {
    GroupScope scope(run, record);
    PLAIT_RETURN_IF_ERROR(run_step(run, dispatcher, backward));
    run.drop_state();
    record.replay();
    PLAIT_RETURN_IF_ERROR(group.barrier("measurement"));
    recorder.reset();
    int64_t begin = now_ns();
    PLAIT_RETURN_IF_ERROR(run_step(run, dispatcher, backward));
    ms = milliseconds(now_ns() - begin);
    PLAIT_RETURN_IF_ERROR(record.finished());
  }
  PLAIT_RETURN_IF_ERROR(drop_record(run, record));
  return std::max(0.0, ms - sum_stages(recorder, {Stage::permute}));
}

Result<double> measure_exchange(LayerRun& run, const RoutingPlan& plan, bool backward) {
  PLAIT_RETURN_IF_ERROR(run.group().barrier("exchange alone"));
  int64_t begin = now_ns();
  for (int pass = 0; pass < (backward ? 2 : 1); ++pass) {
    PLAIT_RETURN_IF_ERROR(move_rows(run, plan, false));
    PLAIT_RETURN_IF_ERROR(move_rows(run, plan, true));
  }
  double ms = milliseconds(now_ns() - begin);
  PLAIT_RETURN_IF_ERROR(run.group().barrier("exchange alone"));
  return ms;
}

double step_flops(const Case& run_case, int64_t num_global_rows) {
  const LayerConfig& layer = run_case.layer;
  auto matmul = [](int64_t m, int64_t k, int64_t n) { return 2.0 * static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(n); };
  auto mlp = [&](int64_t rows, int64_t intermediate) {
    return intermediate > 0 ? matmul(rows, layer.hidden, layer.activation.hidden_columns(intermediate)) + matmul(rows, intermediate, layer.hidden)
                            : 0.0;
  };
  int64_t tokens = run_case.ranks * run_case.tokens;
  double forward =
      mlp(num_global_rows, layer.intermediate) + mlp(tokens, layer.shared_intermediate) + matmul(tokens, layer.hidden, layer.router.num_experts);
  return run_case.backward ? 3 * forward : forward;
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total_pages = 0, resident_pages = 0;
  file >> total_pages >> resident_pages;
  return file ? resident_pages * sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace plait
