#pragma once
/// Ranks as forked processes: started, killed and collected by a test, never outliving it.

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plait/group.h"
#include "plait/status.h"

namespace plait::test {

/// How one child ended.
struct Outcome {
  bool exited = false;     ///< it returned from its body
  int signal = 0;          ///< the signal that ended it
  bool timed_out = false;  ///< it was killed because it ran too long
  Status status;           ///< what its body returned; ok where it did not return

  /// For messages: "ok", "signal 9", "timed out", or the status.
  std::string to_string() const;
};

/// Forks `size` children that run body(index) and end without running the parent's destructors or exit handlers. No threads may run in the
/// parent. The destructor kills what is left.
class Processes {
 public:
  using Body = std::function<Status(int index)>;
  Processes(int size, const Body& body);
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  pid_t pid(int index) const { return children_[static_cast<size_t>(index)].pid; }
  void kill(int index) const;
  int num_running();
  /// Waits for all; those that run longer than `timeout_s` are killed.
  std::vector<Outcome> wait(double timeout_s = 60);

 private:
  struct Child {
    pid_t pid = -1;
    int pipe = -1;
    std::string text;
    bool reaped = false;
    int wait_status = 0;
  };
  static void drain(Child& child);
  static bool reap(Child& child);
  std::vector<Child> children_;
};

/// A number in memory that forked children share; 0 at first.
class SharedNumber {
 public:
  SharedNumber();
  ~SharedNumber();
  SharedNumber(const SharedNumber&) = delete;
  SharedNumber& operator=(const SharedNumber&) = delete;
  std::atomic<int64_t>& operator*() const { return *number_; }

 private:
  std::atomic<int64_t>* number_;
};

/// A counter in memory that forked children share: for telling that a point has been reached.
class SharedCounter {
 public:
  void add(int value = 1) const { *counter_ += value; }
  int value() const { return static_cast<int>(*counter_); }
  /// False where it has not reached `value` after `timeout_s`.
  bool wait_for(int value, double timeout_s = 60) const;

 private:
  SharedNumber counter_;
};

/// For random moments of a kill.
void pause_us(int64_t microseconds);

/// Runs body(group) on `size` ranks of an engine: threads, or forked processes that join a shm group of a fresh name. Statuses in rank order.
std::vector<Status> run_engine(Engine engine, int size, const GroupOptions& options, const std::function<Status(Group&)>& body);

/// A job name that no other test and no other run uses.
std::string unique_job();

/// The first status that is not ok, with its rank, or "".
std::string first_error(const std::vector<Status>& statuses);

}  // namespace plait::test
