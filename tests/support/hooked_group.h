#pragma once
/// A group that runs a hook before calls, with which a test lets one rank stall or die at a chosen point of an operator.

#include <functional>
#include <string_view>
#include <utility>

#include "comm/group_decorator.h"

namespace plait::test {

struct GroupCall {
  enum class Kind { barrier, exchange, allocate, signal, wait, poll };
  Kind kind;
  int channel;             ///< of signal, wait and poll, else -1
  std::string_view stage;  ///< of barrier, exchange and wait
};

class HookedGroup final : public comm::GroupDecorator {
 public:
  /// `hook` may run on any thread, since polls (signal_value) and signals may.
  using Hook = std::function<void(Group& inner, const GroupCall& call)>;
  HookedGroup(Group& inner, Hook hook) : GroupDecorator(inner), hook_(std::move(hook)) {}

  Status barrier(std::string_view stage) override {
    hook_(inner(), {GroupCall::Kind::barrier, -1, stage});
    return GroupDecorator::barrier(stage);
  }
  Result<Exchange> exchange(std::string_view stage, std::span<const std::byte> payload, std::span<const Region> regions) override {
    hook_(inner(), {GroupCall::Kind::exchange, -1, stage});
    return GroupDecorator::exchange(stage, payload, regions);
  }
  Result<Region> allocate(int64_t bytes) override {
    hook_(inner(), {GroupCall::Kind::allocate, -1, {}});
    return GroupDecorator::allocate(bytes);
  }
  Status signal(int channel, uint64_t value) override {
    hook_(inner(), {GroupCall::Kind::signal, channel, {}});
    return GroupDecorator::signal(channel, value);
  }
  Status wait(int peer, int channel, uint64_t value, std::string_view stage) override {
    hook_(inner(), {GroupCall::Kind::wait, channel, stage});
    return GroupDecorator::wait(peer, channel, value, stage);
  }
  uint64_t signal_value(int peer, int channel) const override {
    hook_(inner(), {GroupCall::Kind::poll, channel, {}});
    return GroupDecorator::signal_value(peer, channel);
  }

 private:
  Hook hook_;
};

}  // namespace plait::test
