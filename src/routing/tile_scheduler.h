#pragma once
/// Runs the tiles of a fused operator in the order in which their rows come, on a context's threads.

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plait/context.h"
#include "plait/counters.h"
#include "plait/group.h"
#include "plait/status.h"

namespace plait {

/// What says that a rank's rows are there: its counter `channel` has reached `value`.
struct Arrival {
  int channel = 0;
  uint64_t value = 0;
  Stage stage = Stage::dispatch;  ///< what a wait for it is called and counted as
};

/// A block of rows on its way through its stages, or any other list of tiles. All tiles of a stage may run at once; a stage begins when
/// the one before is done.
struct TileChain {
  static constexpr int max_stages = 4;
  static constexpr int no_gate = -1;
  /// Counts down `gate` once stage `after` is done.
  struct Lead {
    int gate = no_gate;
    int after = 0;
  };

  struct Step {
    Stage stage = Stage::other;
    int32_t num_tiles = 0;
  };
  std::array<Step, max_stages> steps{};
  int num_steps = 0;
  std::vector<int32_t> sources;  ///< ranks whose rows must have arrived before it starts
  int behind = no_gate;          ///< the gate that must be open before it starts
  std::array<Lead, 3> leads{};
  bool filler = false;                 ///< its tiles run only where no others can
  int until = no_gate;                 ///< a gate: the chain may be left out. It begins only while the gate is closed, which then waits for it too
  int32_t expert = -1;                 ///< global; for messages
  int64_t row_begin = 0, row_end = 0;  ///< of the expert; for messages

  void add_step(Stage stage, int64_t num_tiles) { steps[static_cast<size_t>(num_steps++)] = {stage, static_cast<int32_t>(num_tiles)}; }
};

/// Workers go on with the chain they are at, then begin the first chain in the order of add() whose rows have arrived, then help others,
/// then go on with fillers or begin one. Only where no tile can run does the calling thread wait for a peer.
/// Example: scheduler.add(chain, [&](const TileScheduler::TileAt& at) { ... }); return scheduler.run(context, group, arrival);
class TileScheduler {
 public:
  /// A gate opens when all chains that lead to it have passed their stage (at once where none does); `on_open` is then called once, on any
  /// worker. Its error ends the run.
  int add_gate(std::function<Status()> on_open = {});
  struct TileAt {
    int step, tile, worker;
  };
  using RunTile = std::function<void(const TileAt&)>;
  /// `run_tile` does the work of the chain's tiles.
  void add(TileChain chain, RunTile run_tile);

  /// Runs everything once. Collective only in that peers must raise their counters; errors are those of Group::wait and of gates. On an
  /// error no tile is running any more when it returns.
  Status run(const Context& context, Group& group, const Arrival& arrival);

  /// One line per chain that has not begun or not ended: its expert, rows and stage, and the ranks or the gate that it waits for.
  std::string describe_unfinished() const;

 private:
  class Run;
  struct Gate {
    std::function<Status()> on_open;
    int pending = 0;
    std::vector<int> optional;  ///< chains that are left out once it is open
  };
  std::vector<TileChain> chains_;
  std::vector<RunTile> run_tile_;  ///< one per chain
  std::vector<Gate> gates_;
  std::string unfinished_;
};

}  // namespace plait
