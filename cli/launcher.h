#pragma once
/// Starts the ranks of a job as processes of this machine, watches them, and makes one message of what went wrong.

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "cli/failure.h"
#include "plait/status.h"

namespace plait::cli {

struct LaunchOptions {
  std::string command;                 ///< "plait run", for messages
  std::vector<std::string> arguments;  ///< the program's own, argv[0] included; each rank gets the same and `--report-fd N`
  int num_ranks = 1;
  std::chrono::milliseconds failure_grace{5000};    ///< after one rank has failed, for the others to end with their own errors
  std::chrono::milliseconds interrupt_grace{4000};  ///< after SIGINT or SIGTERM: all are gone within 5 s
};

/// One process per rank, all of them this program again, with PLAIT_RANK, PLAIT_SIZE and a PLAIT_JOB of their own. Rank 0 keeps stdout.
/// Ranks die with the launcher. Only processes started here are ever signalled or waited for.
class Launcher {
 public:
  explicit Launcher(LaunchOptions options);
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  /// Starts all, waits for all, prints the one message and returns the exit code: rank 0's where no rank failed; 3 where one did, 2 where
  /// all failed on bad input; 130 when interrupted.
  int run();

 private:
  struct Child {
    pid_t pid = -1;
    int report_fd = -1;  ///< read end of the pipe for its failure message
    bool running = false;
    bool killed_here = false;
  };

  Status start_all();
  Status start(int rank);
  void watch();
  void on_signal(int signal);
  void reap();
  void on_end(int rank, int wait_status);
  void stop_others_within(std::chrono::milliseconds grace);
  void signal_running(int signal);
  void kill_running();
  bool any_running() const;
  int milliseconds_left() const;
  int finish() const;

  LaunchOptions options_;
  std::vector<Child> children_;
  std::vector<RankFailure> failures_;  ///< in order of arrival
  std::optional<std::chrono::steady_clock::time_point> deadline_;
  bool interrupted_ = false;
  int exit_code_of_rank_0_ = 0;
  int signal_fd_ = -1;
};

/// A name that no other job of this machine has: at most 64 letters, digits, '.', '_' and '-'.
std::string unique_job_name();

}  // namespace plait::cli
