#pragma once
/// A group whose peers seem slow: the same calls, later and in another order, as a seed says.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "comm/group_decorator.h"

namespace plait::test {

/// Every rank wraps its group in one with the same or another seed. The number of delays of a call depends on seed, rank and the index of
/// the call alone. Peers' counters lag: signal_value() shows an older value, or one between, for some polls, each peer and channel on its
/// own, so that they seem to rise in another order; it never falls, never exceeds the true value and reaches it after enough polls. This
/// rank's own counters are exact. signal_value() may be called from any thread.
class DelayedGroup final : public comm::GroupDecorator {
 public:
  DelayedGroup(Group& inner, uint64_t seed);

  Status barrier(std::string_view stage) override;
  Result<Exchange> exchange(std::string_view stage, std::span<const std::byte> payload, std::span<const Region> regions) override;
  Status all_to_all_v(const Context& context, std::string_view stage, const Region& own, std::span<const RegionView> regions,
                      std::span<const SendBlock> send, std::span<const RecvBlock> recv) override;
  Status signal(int channel, uint64_t value) override;
  Status wait(int peer, int channel, uint64_t value, std::string_view stage) override;
  uint64_t signal_value(int peer, int channel) const override;

  /// Polls that were answered with less than the true value, so that a test can tell that it was delayed at all.
  int64_t num_late_polls() const { return num_late_polls_.load(std::memory_order_relaxed); }

 private:
  struct Counter {
    std::atomic<uint64_t> shown{0};
    std::atomic<uint64_t> num_polls{0};
  };

  void delay();
  Counter& counter(int peer, int channel) const;

  uint64_t seed_;
  std::atomic<uint64_t> num_calls_{0};
  std::unique_ptr<Counter[]> counters_;  // size() * 16
  mutable std::atomic<int64_t> num_late_polls_{0};
};

}  // namespace plait::test
