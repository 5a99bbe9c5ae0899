#pragma once
/// What every fused call does around its tiles: tells peers how far this rank is, cuts its rows into chains, counts what crossed.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "plait/counters.h"
#include "plait/group.h"
#include "plait/status.h"
#include "routing/row_access.h"
#include "routing/tile_scheduler.h"

namespace plait {

/// How peers are told and asked: `rows` says when a rank's rows may be read; `results` is what results_there rises to at the end; 0: the tiles tell
/// nobody.
struct FusedSignals {
  Arrival rows;
  uint64_t results = 0;
};

/// The status with this rank and `stage` where it names none. Stops the group, so that no peer waits for this rank, and dumps the state,
/// with `unfinished` tiles, where PLAIT_DUMP asks for it.
Status stop_group(Group& group, std::string_view operation, Stage stage, std::string_view unfinished, Status status);

/// Tells the peers that this rank's rows are there, and how its tiles see theirs and report results.
Result<FusedSignals> tell_rows_there(Group& group, Stage stage);

/// Returns once every peer has raised results_there as often as this rank has. On an error `unfinished` says for the dump whose results are
/// missing; the error says how many of the plan's rows went to that rank.
Status wait_for_results(Group& group, const RoutingPlan& plan, Stage stage, std::string& unfinished);

/// Rows of this rank's tokens that go to experts of others, and rows of others for its own experts.
struct CrossingRows {
  int64_t leaving, coming;
};
CrossingRows crossing_rows(const RoutingPlan& plan);
/// Counts what crosses between ranks, read in place or written in place: per entry `bytes_out` to its expert and `bytes_home` back; 0: its
/// rows do not go that way. A rank's own rows never leave it.
void count_crossing_rows(Recorder& recorder, const RoutingPlan& plan, int64_t bytes_out, int64_t bytes_home);

/// A chain without steps for one block.
TileChain chain_of(const RoutingPlan& plan, const ExpertBlock& block);

/// A block's rows in pieces for elementwise work: one where one thread does it all.
struct RowPieces {
  RowPieces(const ExpertBlock& block, int threads)
      : block_(block), count_(threads == 1 ? 1 : std::clamp<int64_t>(block.num_rows() / least_rows, 1, int64_t{2} * threads)) {}
  int64_t count() const { return count_; }
  /// In expert-major order.
  int64_t begin(int64_t piece) const { return block_.first_row + block_.row_begin + block_.num_rows() * piece / count_; }
  int64_t end(int64_t piece) const { return begin(piece + 1); }

 private:
  static constexpr int64_t least_rows = 16;
  const ExpertBlock& block_;
  int64_t count_;
};

}  // namespace plait
