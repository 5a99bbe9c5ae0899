#include <memory>
#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "cli/case_options.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/output.h"
#include "cli/preflight.h"
#include "cli/ranks.h"
#include "cli/signals.h"
#include "observe/run.h"

namespace plait::cli {
namespace {

struct RunArguments {
  CaseOptions case_options;
  CLI::Option* steps = nullptr;
  CLI::Option* rounds = nullptr;
};

int show(const Program& program, const RunReport& report) {
  if (program.json != "-") print_result(format_table(report));
  if (Status status = write_json(program.json, to_json(report)); !status.ok()) return fail(program, status);
  if (report.interrupted) return fail(program, Status::interrupted("stopped by a signal"));
  return all_checks_hold(report) ? 0 : 1;
}

int run(Program& program, const RunArguments& arguments) {
  RunOptions options;
  read_count(*arguments.steps, 0, options.steps, program);
  read_count(*arguments.rounds, 1, options.rounds, program);
  Result<Prepared> prepared = prepare(program, arguments.case_options);
  if (!prepared.ok()) return fail(program, prepared.status());
  options.run_case = prepared->run_case;
  ProgressBar bar(program.quiet);
  options.progress = [&](double done, std::string_view what) { bar.show(done, what); };
  options.interrupted = interrupted;
  RunReport report_of_rank_0;
  auto body = [&](Group& group) -> Status {
    PLAIT_ASSIGN_OR_RETURN(RunReport report, run_case(options, group));
    if (group.rank() == 0) report_of_rank_0 = std::move(report);
    return {};
  };
  auto finish = [&] {
    bar.clear();
    return show(program, report_of_rank_0);
  };
  return run_on_ranks(program, prepared->standing, options.run_case, body, finish);
}

}  // namespace

void add_run_command(CLI::App& app, Program& program) {
  CLI::App* command = app.add_subcommand("run", "Measure dispatchers against each other and compare their bits");
  auto arguments = std::make_shared<RunArguments>();
  arguments->case_options.attach(*command);
  arguments->steps =
      command->add_option("--steps", "Train this many steps on the input and compare the losses [0]")->type_name("N")->group("Measuring");
  arguments->rounds = command->add_option("--rounds", "Measured rounds after one warm-up [5]")->type_name("N")->group("Measuring");
  add_common_options(*command, program);
  command->footer(
      "Examples\n"
      "  plait run\n"
      "  plait run --model mixtral_8x7b --scale 1/16 --ranks 2 --tokens 256 --steps 3\n"
      "\nExit code: 0 all bits equal, 1 a difference, 2 bad input, 3 a rank failed, 130 interrupted.");
  command->callback([arguments, &program] { program.action = [arguments, &program] { return run(program, *arguments); }; });
}

}  // namespace plait::cli
