#pragma once
/// One rank's layer of a case, run with any dispatcher, and the figures of its steps. docs/measuring.md defines each.

#include <array>
#include <cstdint>
#include <vector>

#include "observe/inputs.h"
#include "observe/measure_compare.h"
#include "plait/config.h"
#include "plait/context.h"
#include "plait/group.h"
#include "plait/layer.h"
#include "plait/status.h"
#include "train/parameters.h"

namespace plait {

/// Threads of each rank: the case's, else PLAIT_THREADS, else the usable CPUs divided by the ranks, at least 1.
Result<int> threads_per_rank(const Case& run_case);

/// Weights, inputs and results of one rank. `context` and `group` must outlive it.
class LayerRun {
 public:
  static Result<LayerRun> create(const Context& context, Group& group, const Case& run_case, CaseInputs inputs);

  /// The routing of the next forward: the inputs' own, until another is set.
  void set_routing(const GivenRouting& given) { given_ = given; }
  /// Collective.
  Status forward(Dispatcher dispatcher);
  Status backward();

  /// y and, after backward, dx and the gradients that this routing gives: dweights where ids are given, else the router's.
  std::vector<NamedResult> results(bool backward) const;

  const Context& context() const { return *context_; }
  Group& group() const { return *group_; }
  /// The next calls go through `group`, which wraps that of create().
  void set_group(Group& group) { group_ = &group; }
  const LayerConfig& config() const { return config_; }
  const CaseInputs& inputs() const { return inputs_; }
  const LayerState& state() const { return state_; }
  const train::LayerParameters& parameters() const { return parameters_; }
  void drop_state() { state_ = {}; }

 private:
  const Context* context_ = nullptr;
  Group* group_ = nullptr;
  LayerConfig config_;
  train::LayerParameters parameters_;
  CaseInputs inputs_;
  GivenRouting given_;
  Tensor y_, dx_, dweights_;
  LayerState state_;
};

/// The figures of one step on one rank, in ms and bytes; `compute` is measure_compute()'s.
struct StepSample {
  double step = 0, forward = 0, backward = 0, comm = 0, dispatch = 0, combine = 0, gmm = 0, permute = 0, host = 0, compute = 0;
  int64_t bytes_sent = 0, peak_bytes = 0, resident_bytes = 0;
  double waited = 0;    ///< for the peer that was waited for longest
  int waited_for = -1;  ///< that peer; -1: for nobody
  int64_t tiles = 0, chains_late = 0, early_tiles = 0;
  std::array<char, 160> reason{};         ///< why `ran` was chosen, cut to fit
  Dispatcher ran = Dispatcher::alltoall;  ///< the strategy that the step used, where another may be chosen than asked for
};

/// Runs forward and, where asked for, backward between two barriers. Collective.
Result<StepSample> measure_step(LayerRun& run, Dispatcher dispatcher, bool backward);

/// The computation of a step alone, in ms: a step is recorded, then all ranks run it again at the same time with the recorded rows of their
/// peers, without waiting and without the dispatcher's copies. Both steps must make the same calls: `dispatcher` is one that does not choose
/// anew, StepSample::ran. Collective.
Result<double> measure_compute(LayerRun& run, Dispatcher dispatcher, bool backward);

/// The exchange of the step's rows alone, in ms: counts, rows to the experts, rows home; twice with backward. `plan` is that of the step.
/// Collective.
Result<double> measure_exchange(LayerRun& run, const RoutingPlan& plan, bool backward);

/// Floating-point operations of one step over all ranks: expert matmuls of all rows, router, shared expert; backward counts twice forward.
double step_flops(const Case& run_case, int64_t num_global_rows);

/// Resident memory of this process.
int64_t resident_bytes();

}  // namespace plait
