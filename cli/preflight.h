#pragma once
/// What is looked at before any rank starts, so that bad input costs nothing and is told once.

#include "cli/case_options.h"
#include "cli/program.h"
#include "cli/ranks.h"
#include "plait/config.h"

namespace plait::cli {

struct Prepared {
  Standing standing;
  Case run_case;
};

/// The environment's knobs, the kernel tier, the JSON path and the CASE. Log messages go to stderr from here on.
Result<Prepared> prepare(const Program& program, const CaseOptions& case_options);

/// The part for sub-commands of one process.
Status prepare_process(const Program& program, int rank);

}  // namespace plait::cli
