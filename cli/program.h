#pragma once
/// What every sub-command shares: the program's arguments, the options that all have, and how a failure becomes an exit code.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "plait/status.h"

namespace plait::cli {

struct Program {
  std::vector<std::string> arguments;  ///< argv
  std::string command = "plait";       ///< "plait run", for messages
  std::string json;                    ///< --json FILE, "" = none
  bool quiet = false;
  int report_fd = -1;               ///< where a launched rank writes why it failed; -1 = this process was not launched by us
  std::vector<std::string> faults;  ///< unknown options and words, told together with the faults of their values
  std::function<int()> action;      ///< what the chosen sub-command does; returns the exit code
};

/// Tells of a failure where it will be seen, the launcher or stderr, and returns its exit code.
int fail(const Program& program, const Status& status);

/// An error with all of program.faults, or ok.
Status check_faults(const Program& program);

}  // namespace plait::cli
