#pragma once
/// The Group of every engine with common memory.

#include <memory>
#include <vector>

#include "comm/engine.h"
#include "comm/protocol.h"
#include "comm/views.h"
#include "comm/window.h"
#include "plait/group.h"

namespace plait::comm {

class CommonGroup final : public Group {
 public:
  CommonGroup(Engine engine, Protocol protocol, std::unique_ptr<SegmentStore> store);
  ~CommonGroup() override;

  int rank() const override { return protocol_.rank(); }
  int size() const override { return protocol_.size(); }
  Engine engine() const override { return engine_; }
  const GroupOptions& options() const override { return protocol_.options(); }

  Status barrier(std::string_view stage) override;
  Result<Exchange> exchange(std::string_view stage, std::span<const std::byte> payload, std::span<const Region> regions) override;
  Result<Region> allocate(int64_t bytes) override;
  std::optional<Region> find_region(const std::byte* data, int64_t bytes) const override { return window_->find(data, bytes); }
  Status all_to_all_v(const Context& context, std::string_view stage, const Region& own, std::span<const RegionView> regions,
                      std::span<const SendBlock> send, std::span<const RecvBlock> recv) override;
  bool addressable(int peer) const override { return peer >= 0 && peer < size(); }

  Status signal(int channel, uint64_t value) override { return protocol_.signal(channel, value); }
  Status wait(int peer, int channel, uint64_t value, std::string_view stage) override { return protocol_.wait(peer, channel, value, stage); }
  uint64_t signal_value(int peer, int channel) const override { return protocol_.signal_value(peer, channel); }

  void abort(const Status& why) override;
  Status health() override { return protocol_.health(); }
  void record_to(Recorder* recorder) override;

  int64_t window_bytes() const override { return window_->bytes_in_use(); }
  int64_t peak_window_bytes() const override { return window_->peak_bytes(); }
  void reset_peak_window_bytes() override { window_->reset_peak(); }
  /// Memory behind the window, regions and free space.
  int64_t reserved_window_bytes() const { return window_->reserved_bytes(); }

  Protocol& protocol() { return protocol_; }

 private:
  Slot begin_round(CallKind kind, std::string_view stage, int64_t payload_bytes);
  Status end_round();
  Status publish(std::span<const Region> regions, std::string_view stage);
  Status take_views(const SlotHeader& header, int peer, std::string_view stage, Exchange& exchange);
  Status reserve(int64_t bytes);

  Engine engine_;
  Protocol protocol_;
  std::unique_ptr<SegmentStore> store_;
  std::shared_ptr<Window> window_;
  Views views_;
  Recorder* recorder_ = nullptr;
};

}  // namespace plait::comm
