#include "cli/preflight.h"

#include "base/status_macros.h"
#include "cli/output.h"
#include "plait/context.h"
#include "plait/env.h"

namespace plait::cli {

Status prepare_process(const Program& program, int rank) {
  PLAIT_ASSIGN_OR_RETURN(Env env, Env::read());
  if (!env.log_level.empty() && !program.quiet) send_log_to_stderr(env.log_level, rank);
  if (!env.kernel.empty()) PLAIT_RETURN_IF_ERROR(default_tier().status());  // only a tier that was asked for can be absent
  return check_json_path(program.json);
}

Result<Prepared> prepare(const Program& program, const CaseOptions& case_options) {
  PLAIT_ASSIGN_OR_RETURN(Standing standing, find_standing());
  PLAIT_RETURN_IF_ERROR(prepare_process(program, standing.joined ? standing.launch.rank : -1));
  PLAIT_ASSIGN_OR_RETURN(Case run_case, case_options.resolve(program, standing));
  return Prepared{standing, std::move(run_case)};
}

}  // namespace plait::cli
