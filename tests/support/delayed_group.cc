#include "support/delayed_group.h"

#include <thread>

#include "comm/control.h"

namespace plait::test {
namespace {

constexpr uint64_t max_yields = 300;
constexpr uint64_t max_polls_of_a_step = 24;  // a counter moves on average after half of these

/// The finaliser of splitmix64: neighbouring inputs give unrelated outputs.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

void raise(std::atomic<uint64_t>& to, uint64_t value) {
  uint64_t seen = to.load(std::memory_order_acquire);
  while (seen < value && !to.compare_exchange_weak(seen, value, std::memory_order_acq_rel)) {
  }
}

}  // namespace

DelayedGroup::DelayedGroup(Group& inner, uint64_t seed)
    : GroupDecorator(inner),
      seed_(mix(seed ^ mix(static_cast<uint64_t>(inner.rank())))),
      counters_(std::make_unique<Counter[]>(static_cast<size_t>(inner.size() * comm::num_channels))) {}

/// Half of the calls are not delayed, so that slow and quick ones meet.
void DelayedGroup::delay() {
  const uint64_t draw = mix(seed_ + num_calls_.fetch_add(1, std::memory_order_relaxed));
  const uint64_t num_yields = draw % 2 == 0 ? 0 : (draw >> 8) % max_yields;
  for (uint64_t i = 0; i < num_yields; ++i) std::this_thread::yield();
}

DelayedGroup::Counter& DelayedGroup::counter(int peer, int channel) const {
  return counters_[static_cast<size_t>(peer * comm::num_channels + channel)];
}

Status DelayedGroup::barrier(std::string_view stage) {
  delay();
  return inner().barrier(stage);
}

Result<Exchange> DelayedGroup::exchange(std::string_view stage, std::span<const std::byte> payload, std::span<const Region> regions) {
  delay();
  return inner().exchange(stage, payload, regions);
}

Status DelayedGroup::all_to_all_v(const Context& context, std::string_view stage, const Region& own, std::span<const RegionView> regions,
                                  std::span<const SendBlock> send, std::span<const RecvBlock> recv) {
  delay();
  return inner().all_to_all_v(context, stage, own, regions, send, recv);
}

Status DelayedGroup::signal(int channel, uint64_t value) {
  delay();
  return inner().signal(channel, value);
}

Status DelayedGroup::wait(int peer, int channel, uint64_t value, std::string_view stage) {
  delay();
  Status status = inner().wait(peer, channel, value, stage);
  if (status.ok() && peer != rank()) raise(counter(peer, channel).shown, value);
  return status;
}

uint64_t DelayedGroup::signal_value(int peer, int channel) const {
  const uint64_t value = inner().signal_value(peer, channel);
  if (peer == rank()) return value;
  Counter& state = counter(peer, channel);
  const uint64_t shown = state.shown.load(std::memory_order_acquire);
  if (shown >= value) return shown;
  const uint64_t poll = state.num_polls.fetch_add(1, std::memory_order_relaxed);
  const uint64_t draw =
      mix(seed_ ^ mix((poll * static_cast<uint64_t>(size()) + static_cast<uint64_t>(peer)) * comm::num_channels + static_cast<uint64_t>(channel)));
  const uint64_t patience = 1 + (mix(seed_ + static_cast<uint64_t>(peer * comm::num_channels + channel)) % max_polls_of_a_step);
  if (draw % patience == 0) raise(state.shown, draw >> 63 == 0 ? value : shown + 1 + (draw >> 8) % (value - shown));
  const uint64_t now = state.shown.load(std::memory_order_acquire);
  if (now < value) num_late_polls_.fetch_add(1, std::memory_order_relaxed);
  return now;
}

}  // namespace plait::test
