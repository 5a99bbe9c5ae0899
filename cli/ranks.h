#pragma once
/// Running a collective body over the group of a case, whichever way its ranks come to life.

#include <functional>

#include "cli/program.h"
#include "plait/config.h"
#include "plait/group.h"
#include "plait/status.h"

namespace plait::cli {

/// How this process stands to the ranks of a job.
struct Standing {
  bool joined = false;  ///< a launcher (ours, torchrun, mpirun, srun) started this process as one of several ranks
  Launch launch;
  GroupOptions options;
};
Result<Standing> find_standing();

/// Calls `body` once per rank with that rank's group, in one of three ways: as threads of this process (engine threads), as one of the
/// ranks that a launcher started, or by starting the ranks as processes. `finish` runs in the process of rank 0 after its body succeeded
/// and returns the exit code. Every failure has been told when this returns its exit code.
int run_on_ranks(const Program& program, const Standing& standing, const Case& of, const std::function<Status(Group&)>& body,
                 const std::function<int()>& finish);

/// True in a process that only starts the ranks: it shows no results itself.
bool only_launches(const Standing& standing, const Case& of);

}  // namespace plait::cli
