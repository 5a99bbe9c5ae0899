#pragma once
/// What operators leave behind of their last calls, and their stages as events of PyTorch's profiler.

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "plait/counters.h"

namespace plait::python {

/// One call. Times in ns of now_ns().
struct CallFigures {
  int64_t begin_ns = 0, end_ns = 0;
  std::array<int64_t, num_stages> stage_ns{};
  std::array<int64_t, num_counters> counters{};
  std::vector<int64_t> peer_wait_ns;
};

/// The last call of each operator. Thread-safe.
class CallLog {
 public:
  /// What `recorder` has since its reset at `begin_ns`.
  void add(const std::string& operation, int64_t begin_ns, const Recorder& recorder);
  std::map<std::string, CallFigures> calls() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, CallFigures> calls_;
};

/// Shows zones as events while PyTorch's profiler runs. Called without the interpreter lock.
class ProfiledZones final : public ZoneObserver {
 public:
  void begin(Stage stage) override;
  void end(Stage stage) override;

 private:
  std::vector<void*> open_;  ///< owned references to the entered torch.profiler.record_function objects, innermost last
};

/// Lets the recorder tell `zones` for as long as it lives, where `profiled`.
class ProfiledCall {
 public:
  ProfiledCall(Recorder& recorder, bool profiled) : recorder_(recorder) { recorder.observer = profiled ? &zones_ : nullptr; }
  ~ProfiledCall() { recorder_.observer = nullptr; }
  ProfiledCall(const ProfiledCall&) = delete;
  ProfiledCall& operator=(const ProfiledCall&) = delete;

 private:
  Recorder& recorder_;
  ProfiledZones zones_;
};

}  // namespace plait::python
