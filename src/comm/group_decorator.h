#pragma once
/// A Group that hands every call on to another one: the base of groups that watch or change some of the calls.

#include <optional>
#include <string_view>

#include "plait/group.h"

namespace plait::comm {

class GroupDecorator : public Group {
 public:
  /// `inner` must outlive the decorator.
  explicit GroupDecorator(Group& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Engine engine() const override { return inner_.engine(); }
  const GroupOptions& options() const override { return inner_.options(); }

  Status barrier(std::string_view stage) override { return inner_.barrier(stage); }
  Result<Exchange> exchange(std::string_view stage, std::span<const std::byte> payload, std::span<const Region> regions) override {
    return inner_.exchange(stage, payload, regions);
  }
  Result<Region> allocate(int64_t bytes) override { return inner_.allocate(bytes); }
  std::optional<Region> find_region(const std::byte* data, int64_t bytes) const override { return inner_.find_region(data, bytes); }
  Status all_to_all_v(const Context& context, std::string_view stage, const Region& own, std::span<const RegionView> regions,
                      std::span<const SendBlock> send, std::span<const RecvBlock> recv) override {
    return inner_.all_to_all_v(context, stage, own, regions, send, recv);
  }
  bool addressable(int peer) const override { return inner_.addressable(peer); }

  Status signal(int channel, uint64_t value) override { return inner_.signal(channel, value); }
  Status wait(int peer, int channel, uint64_t value, std::string_view stage) override { return inner_.wait(peer, channel, value, stage); }
  uint64_t signal_value(int peer, int channel) const override { return inner_.signal_value(peer, channel); }

  void abort(const Status& why) override { inner_.abort(why); }
  Status health() override { return inner_.health(); }
  void record_to(Recorder* recorder) override { inner_.record_to(recorder); }

  int64_t window_bytes() const override { return inner_.window_bytes(); }
  int64_t peak_window_bytes() const override { return inner_.peak_window_bytes(); }
  void reset_peak_window_bytes() override { inner_.reset_peak_window_bytes(); }

 protected:
  Group& inner() const { return inner_; }

 private:
  Group& inner_;
};

}  // namespace plait::comm
