#pragma once
/// A step without communication: a group that records what a real step got from its peers, then gives it again without waiting for anyone.

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/control.h"
#include "comm/group_decorator.h"

namespace plait {

/// Records from its construction on: calls go to the inner group, and what allocate() and exchange() returned is kept, so that the peers'
/// regions stay alive with the step's rows in them. After replay() the same calls must come in the same order:
/// - exchange() returns the recorded payloads and views at once; barrier(), signal() and wait() return at once;
/// - allocate() gives fresh memory, so that nobody writes what peers read; what peers wrote home in the recorded step is not in it;
/// - every counter of a peer counts as reached, this rank's own are what it signals, as in a real step;
/// - all_to_all_v() copies nothing: the destination keeps what it held.
/// A call that differs from the record is an internal error. The inner group's counters are the same before and after a replay.
class ReplayGroup final : public comm::GroupDecorator {
 public:
  using GroupDecorator::GroupDecorator;

  /// From now on the recorded step is replayed, from its beginning.
  void replay();
  /// Ok where the replay has made all recorded calls.
  Status finished() const;
  /// Views of regions in the record, the same number on all ranks.
  int64_t num_views() const;
  /// Drops the record: its memory goes back once all ranks have done so.
  void clear() { calls_.clear(); }

  Status barrier(std::string_view stage) override;
  Result<Exchange> exchange(std::string_view stage, std::span<const std::byte> payload, std::span<const Region> regions) override;
  Result<Region> allocate(int64_t bytes) override;
  Status all_to_all_v(const Context& context, std::string_view stage, const Region& own, std::span<const RegionView> regions,
                      std::span<const SendBlock> send, std::span<const RecvBlock> recv) override;
  Status signal(int channel, uint64_t value) override;
  Status wait(int peer, int channel, uint64_t value, std::string_view stage) override;
  uint64_t signal_value(int peer, int channel) const override;

 private:
  /// One recorded allocation or exchange.
  struct Call {
    std::string what;  ///< says all that must be the same in the replay
    Region region;
    Exchange exchange;
  };

  Result<const Call*> next(const std::string& what);

  std::vector<Call> calls_;
  size_t num_replayed_ = 0;
  bool replaying_ = false;                                              // changes between steps only
  std::array<std::atomic<uint64_t>, comm::num_channels> own_values_{};  // this rank's counters as its replay sees them
};

}  // namespace plait
