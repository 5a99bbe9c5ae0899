#include "cli/ranks.h"

#include <fmt/format.h>

#include "base/status_macros.h"
#include "cli/failure.h"
#include "cli/launcher.h"
#include "cli/signals.h"

namespace plait::cli {
namespace {

int run_as_threads(const Program& program, const Standing& standing, const Case& of, const std::function<Status(Group&)>& body,
                   const std::function<int()>& finish) {
  install_interrupt_handlers(InterruptPolicy::alone);
  std::vector<Status> statuses = run_ranks(of.ranks, standing.options, body);
  std::vector<RankFailure> failures;
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    const Status& status = statuses[rank];
    if (!status.ok()) failures.push_back({static_cast<int>(rank), 0, status.code(), status.to_string(), exit_code(status)});
  }
  if (failures.empty()) return finish();
  if (interrupted()) return fail(program, Status::interrupted("stopped by a signal"));
  return fail(program, statuses[static_cast<size_t>(failures[first_cause(failures)].rank)]);
}

int run_as_one_rank(const Program& program, const Standing& standing, const std::function<Status(Group&)>& body, const std::function<int()>& finish) {
  if (program.report_fd < 0) install_interrupt_handlers(InterruptPolicy::alone);
  const Launch& launch = standing.launch;
  Result<std::unique_ptr<Group>> group = join_shm_group(launch.rank, launch.size, launch.job, "main", standing.options);
  Status status = group.ok() ? body(**group) : group.status();
  if (!status.ok() && interrupted()) status = Status::interrupted("stopped by a signal");
  if (!status.ok()) return fail(program, status);
  return launch.rank == 0 ? finish() : 0;
}

}  // namespace

Result<Standing> find_standing() {
  Standing standing;
  PLAIT_ASSIGN_OR_RETURN(standing.launch, detect_launch());
  PLAIT_ASSIGN_OR_RETURN(standing.options, group_options_from_env());
  // Batch systems set their variables in single shells too; one rank alone is no reason not to start ranks here.
  standing.joined = standing.launch.launcher == "plait" || standing.launch.size > 1;
  return standing;
}

bool only_launches(const Standing& standing, const Case& of) { return of.engine != Engine::threads && !standing.joined; }

int run_on_ranks(const Program& program, const Standing& standing, const Case& of, const std::function<Status(Group&)>& body,
                 const std::function<int()>& finish) {
  if (only_launches(standing, of)) return Launcher({.command = program.command, .arguments = program.arguments, .num_ranks = of.ranks}).run();
  if (of.engine == Engine::threads) return run_as_threads(program, standing, of, body, finish);
  return run_as_one_rank(program, standing, body, finish);
}

}  // namespace plait::cli
