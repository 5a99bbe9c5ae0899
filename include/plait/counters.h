#pragma once
/// Zones (timed stages) and counters of one rank. Recording only; writing traces and tables is src/observe.

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

namespace plait {

/// The stages of a layer step. `name(Stage)` is what tables and traces show.
enum class Stage : uint8_t {
  route,
  permute,
  exchange_counts,
  dispatch,
  gate_up,
  activation,
  down,
  combine,
  weighted_sum,
  shared_expert,
  backward_combine,
  backward_down,
  backward_activation,
  backward_gate_up,
  backward_dispatch,
  weight_gradient,
  backward_route,
  other,
};
inline constexpr int num_stages = static_cast<int>(Stage::other) + 1;
std::string_view name(Stage stage);

enum class Counter : uint8_t {
  rows_sent,
  bytes_sent,
  rows_received,
  bytes_received,
  bytes_copied,
  waits,
  wait_ns,
  exchanges,
  matmul_flops,
  tiles,
  chains_late,
  early_tiles  ///< of weight gradients, on a part of their rows
};
inline constexpr int num_counters = static_cast<int>(Counter::early_tiles) + 1;
std::string_view name(Counter counter);

/// Nanoseconds of a steady clock.
int64_t now_ns();

struct ZoneEvent {
  Stage stage;
  int64_t begin_ns;
  int64_t end_ns;
};

/// Told of zones, and of the tiles of fused calls, as they begin and end on the rank's calling thread: for a profiler.
class ZoneObserver {
 public:
  virtual ~ZoneObserver() = default;
  virtual void begin(Stage stage) = 0;
  virtual void end(Stage stage) = 0;
};

/// Totals per stage and counter; events too where `keep_events` is set. add_zone(), add_wait() and zones may come from the rank's calling thread
/// only; counters from any thread.
class Recorder {
 public:
  void add(Counter counter, int64_t value) { counters_[static_cast<int>(counter)].fetch_add(value, std::memory_order_relaxed); }
  int64_t value(Counter counter) const { return counters_[static_cast<int>(counter)].load(std::memory_order_relaxed); }
  void add_zone(Stage stage, int64_t begin_ns, int64_t end_ns) {
    stage_ns_[static_cast<int>(stage)] += end_ns - begin_ns;
    if (keep_events) events_.push_back({stage, begin_ns, end_ns});
  }
  /// Time of a stage whose work is spread over threads: their mean, which has no begin and end of its own.
  void add_stage_ns(Stage stage, int64_t ns) { stage_ns_[static_cast<int>(stage)] += ns; }
  /// Time that this rank waited while `peer` had not come; where it waited for several, each of them counts.
  void add_wait(int peer, int64_t ns) {
    if (static_cast<size_t>(peer) >= peer_wait_ns_.size()) peer_wait_ns_.resize(static_cast<size_t>(peer) + 1);
    peer_wait_ns_[static_cast<size_t>(peer)] += ns;
  }
  /// Per peer; peers beyond the end were never waited for.
  const std::vector<int64_t>& peer_wait_ns() const { return peer_wait_ns_; }
  int64_t stage_ns(Stage stage) const { return stage_ns_[static_cast<int>(stage)]; }
  const std::vector<ZoneEvent>& events() const { return events_; }
  void reset() {
    for (auto& c : counters_) c.store(0, std::memory_order_relaxed);
    stage_ns_ = {};
    peer_wait_ns_.clear();
    events_.clear();
  }
  bool keep_events = false;
  ZoneObserver* observer = nullptr;  ///< must outlive its use here

 private:
  std::array<std::atomic<int64_t>, num_counters> counters_{};
  std::array<int64_t, num_stages> stage_ns_{};
  std::vector<int64_t> peer_wait_ns_;
  std::vector<ZoneEvent> events_;
};

/// Times a scope: `Zone zone(context.recorder(), Stage::permute);`
class Zone {
 public:
  Zone(Recorder& recorder, Stage stage) : recorder_(recorder), stage_(stage), begin_ns_(now_ns()) {
    if (recorder_.observer != nullptr) recorder_.observer->begin(stage_);
  }
  ~Zone() {
    recorder_.add_zone(stage_, begin_ns_, now_ns());
    if (recorder_.observer != nullptr) recorder_.observer->end(stage_);
  }
  Zone(const Zone&) = delete;
  Zone& operator=(const Zone&) = delete;

 private:
  Recorder& recorder_;
  Stage stage_;
  int64_t begin_ns_;
};

}  // namespace plait
