#pragma once
/// Rounds, signals and failures over a control block: how ranks with common memory agree. One thread per rank uses it.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/control.h"
#include "comm/engine.h"
#include "plait/counters.h"
#include "plait/group.h"
#include "plait/status.h"

namespace plait::comm {

/// A round: every rank fills its slot, posts it, waits for all, reads all slots. Two slots per rank are enough: a rank posts round n + 1
/// only after it has read round n, so once round n + 1 is complete nobody reads round n any more, and its slots may be filled for n + 2.
class Protocol {
 public:
  Protocol(int rank, const GroupOptions& options, Control control, std::shared_ptr<Liveness> liveness);

  int rank() const { return rank_; }
  int size() const { return control_.num_ranks(); }
  const GroupOptions& options() const { return options_; }
  const Control& control() const { return control_; }
  void record_to(Recorder* recorder) { recorder_ = recorder; }

  /// Says who this rank is. Before the first round.
  void introduce(int process);
  /// Allows spinning where every rank can have a CPU of its own. After all ranks have introduced themselves.
  void decide_spin();

  /// This rank's slot of the coming round, its header set except for lists, region and payload.
  Slot begin_round(CallKind kind, std::string_view stage, int64_t payload_bytes);
  /// Posts the slot, waits for all ranks and compares what they brought. On error the group has failed.
  Status end_round();
  /// A rank's slot of the round that just ended; valid until the next end_round().
  Slot slot(int peer) const { return control_.slot(peer, static_cast<int>(round_ & 1)); }

  Status signal(int channel, uint64_t value);
  Status wait(int peer, int channel, uint64_t value, std::string_view stage);
  uint64_t signal_value(int peer, int channel) const;

  /// Records `why` as the group's error, unless there is one, and returns the recorded one.
  Status fail(const Status& why);
  /// The group's error, without looking for dead peers.
  Status failure() const;
  Status health();
  /// Others that wait for this rank get an error from now on.
  void leave();

  /// One rank at a time reserves memory, so that each sees what the others took.
  Status lock_reserving();
  void unlock_reserving();

 private:
  template <typename Ready, typename Missing>
  Status wait_until(Event& event, Ready ready, Missing missing);
  template <typename Ready, typename Missing>
  Status sleep_until(Event& event, Ready ready, Missing missing);
  std::vector<int> ranks_that_left() const;
  Status check_left(const std::vector<int>& left, const std::vector<int>& awaited);
  Status too_late(const std::vector<int>& awaited) const;
  bool asked_to_stop() const { return options_.interrupted && options_.interrupted(); }
  /// Stops the group; the error is for this rank alone.
  Status stop_waiting(const std::vector<int>& awaited);
  Status check_agreement();
  std::vector<int> missing_in_round() const;
  std::string who(int rank) const;
  std::string last_seen(int rank) const;

  int rank_;
  GroupOptions options_;
  Control control_;
  std::shared_ptr<Liveness> liveness_;
  Recorder* recorder_ = nullptr;
  uint64_t round_ = 0;  ///< number of the current or last round; the first is 1
  int64_t spin_ns_ = 0;
  std::string stage_ = "start";
  int process_;  ///< where this object was made
};

}  // namespace plait::comm
