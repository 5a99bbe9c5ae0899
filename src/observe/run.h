#pragma once
/// Measuring and comparing dispatchers on one case: what `plait run` does. Definitions of the figures: docs/measuring.md.

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "plait/config.h"
#include "plait/group.h"
#include "plait/status.h"

namespace plait {

namespace train {
class LayerParameters;
}

/// A time over the rounds, in ms.
struct Timing {
  double median = 0, min = 0, max = 0;
  int64_t n = 0;
};

/// Figures of one dispatcher; times are the maximum over the ranks of each round.
struct DispatcherReport {
  Dispatcher dispatcher = Dispatcher::alltoall;
  bool in_contract = true;  ///< false: it may have other bits than the others, as asked for
  Timing step, forward, backward, comm, dispatch, combine, gmm, permute, host, compute_only, comm_only, exposed_comm;
  double utilisation = 0, exposed_share = 0, eta = 0, tokens_per_s = 0;
  int64_t bytes_sent = 0, peak_bytes = 0, resident_bytes = 0, chunks = 1;
  std::string fallback;  ///< what ran instead and why; "": what was asked for
  std::vector<Timing> step_per_rank;
  std::vector<int64_t> bytes_sent_per_rank, peak_bytes_per_rank;
  std::vector<Timing> waited_per_rank;       ///< for the peer that the rank waited for longest
  std::vector<int64_t> waited_for_per_rank;  ///< that peer in the round of the longest wait; -1: none
  std::vector<int64_t> tiles_per_rank, chains_late_per_rank,
      early_tiles_per_rank;             ///< most of a round; a chain is late where its rows had not come when it was next
  std::vector<double> loss, grad_norm;  ///< per training step
  int64_t nonfinite = 0;
};

struct Comparison {
  Dispatcher a, b;
  bool bitwise_equal = false;
  bool in_contract = true;  ///< false: one of the two may have other bits, as asked for; a difference is no failure
  double diff_y = 0, diff_dx = 0, diff_dw_gate_up = 0, diff_dw_down = 0, diff_dweights = 0;  ///< maximum absolute differences
  double speedup = 0;
  std::string first_difference;  ///< result, rank and element; "" where all are equal
};

struct RoutingReport {
  std::vector<int64_t> tokens_per_expert;  ///< over all ranks
  double max_over_mean = 0, entropy = 0;
  int64_t empty_experts = 0;
};

struct MachineReport {
  std::string cpu, tier;
  int usable_cpus = 0;
  double peak_gflops = 0, read_gbps = 0;  ///< of the threads that the ranks use together
};

struct RunReport {
  Case run_case;
  MachineReport machine;
  std::vector<DispatcherReport> dispatchers;  ///< in the order asked for; the first is the baseline
  std::vector<Comparison> comparisons;
  std::vector<RoutingReport> routing;  ///< one item, or one per training step
  bool interrupted = false;            ///< partial: the user stopped it
};

struct RunOptions {
  Case run_case;
  int64_t steps = 0;                                                 ///< training steps; 0 = none
  int64_t rounds = 5;                                                ///< measured rounds after one warm-up
  std::function<void(double done, std::string_view what)> progress;  ///< share in [0,1]; called on rank 0
  std::function<bool()> interrupted;                                 ///< polled between rounds and steps
  /// Called on every rank before a dispatcher is checked; tests give one dispatcher other weights and see the comparison fail.
  std::function<void(Dispatcher, const train::LayerParameters&)> before_check;
};

/// Collective over the group. Rank 0 gets the whole report; the other ranks a report without the collected parts.
Result<RunReport> run_case(const RunOptions& options, Group& group);

/// True where all comparisons are bitwise equal, all losses are finite and equal: exit code 0 or 1.
bool all_checks_hold(const RunReport& report);

/// The table for people, and the JSON of docs/command_line.md.
std::string format_table(const RunReport& report);
nlohmann::ordered_json to_json(const RunReport& report);

}  // namespace plait
