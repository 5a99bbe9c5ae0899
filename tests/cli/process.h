#pragma once
/// Running the built program as a user would: arguments, environment, signals, and what it printed.

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace plait::test {

struct RunResult {
  int exit_code = -1;  ///< 128 + signal where a signal ended it
  std::string out, err;
};

struct RunSettings {
  std::map<std::string, std::string> environment;  ///< on top of this process's; an empty value removes the variable
  std::string folder;                              ///< working directory, "" = this process's
  bool terminal = false;                           ///< stdout and stderr are one pseudo-terminal; everything is in `out`
  int columns = 80;
};

/// One process that was started; killed and waited for on destruction if it still runs.
class Process {
 public:
  Process(const std::vector<std::string>& command, const RunSettings& settings = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Waits for its end and reads what it printed. After `limit_s` seconds it is killed, with exit code -1.
  RunResult wait(double limit_s = 120);
  /// The children that it has now.
  std::vector<pid_t> children() const;
  /// Polls until it has `count` children that handle SIGINT and have computed for a while; fewer after `limit_s` seconds.
  std::vector<pid_t> busy_children(size_t count, double limit_s = 60) const;

 private:
  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
};

/// The program under test.
std::string program();
RunResult run_plait(std::vector<std::string> arguments, const RunSettings& settings = {});

/// True where the process is gone within `limit_s` seconds (a zombie counts as gone).
bool gone_within(pid_t pid, double limit_s);
/// Stops a process and waits until it stands still; false after `limit_s` seconds.
bool stops_within(pid_t pid, double limit_s);
/// Polls `condition` until it holds or `limit_s` is over; returns whether it held.
bool holds_within(double limit_s, const std::function<bool()>& condition);

/// A folder that goes with its owner.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  std::vector<std::string> names() const;

 private:
  std::string path_;
};
std::string read_file(const std::string& path);

}  // namespace plait::test
