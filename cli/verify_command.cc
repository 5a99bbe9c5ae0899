#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/status_macros.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/output.h"
#include "cli/preflight.h"
#include "cli/signals.h"
#include "config/field_text.h"
#include "config/nearest.h"
#include "observe/verify.h"

namespace plait::cli {
namespace {

struct VerifyArguments {
  CaseOptions case_options;
  CLI::Option* sections = nullptr;
  CLI::Option* across_ranks = nullptr;
};

// "1,2,4" -> group sizes; what is no size becomes a fault of the program.
std::vector<int> read_sizes(const CLI::Option& option, Program& program) {
  constexpr int max_ranks = 1024;
  std::vector<int> sizes;
  if (option.count() == 0) return sizes;
  for (const std::string& item : split_list(option.results().front())) {
    auto size = parse_integer(item, 1, max_ranks);
    if (size) {
      sizes.push_back(static_cast<int>(*size));
    } else {
      program.faults.push_back(
          fmt::format("--across-ranks: \"{}\" is not allowed. Allowed: whole numbers from 1 to {}, as in 1,2,4.", item, max_ranks));
    }
  }
  return sizes;
}

// "shape,numeric" -> names; what is no section becomes a fault of the program.
std::vector<std::string> read_sections(const CLI::Option& option, Program& program) {
  if (option.count() == 0) return {};
  std::span<const std::string> known = verify_section_names();
  std::vector<std::string> sections = split_list(option.results().front());
  for (const std::string& section : sections) {
    if (std::find(known.begin(), known.end(), section) != known.end()) continue;
    std::string near = nearest_name(section, known);
    std::string hint = near.empty() ? "." : fmt::format("; did you mean \"{}\"?", near);
    program.faults.push_back(fmt::format("--sections: \"{}\" is not allowed{} Allowed: {}.", section, hint, join_choices(known)));
  }
  return sections;
}

Status check_sizes(const VerifyOptions& options) {
  int64_t num_experts = options.run_case.layer.router.num_experts;
  for (int size : options.across_ranks) {
    if (num_experts % size == 0) continue;
    return Status::invalid_argument(fmt::format("--across-ranks {}: experts {} is not divisible by {} ranks", size, num_experts, size));
  }
  return {};
}

int show(const Program& program, const VerifyReport& report) {
  if (program.json != "-") print_result(format_lines(report));
  if (Status status = write_json(program.json, to_json(report)); !status.ok()) return fail(program, status);
  if (interrupted()) return fail(program, Status::interrupted("stopped by a signal"));
  return report.ok() ? 0 : 1;
}

int verify(Program& program, const VerifyArguments& arguments) {
  VerifyOptions options;
  options.sections = read_sections(*arguments.sections, program);
  options.across_ranks = read_sizes(*arguments.across_ranks, program);
  bool across = std::find(options.sections.begin(), options.sections.end(), "across-ranks") != options.sections.end();
  if (across && arguments.across_ranks->count() == 0) program.faults.emplace_back("--sections across-ranks needs --across-ranks, as in 1,2,4.");
  Result<Prepared> prepared = prepare(program, arguments.case_options);
  if (!prepared.ok()) return fail(program, prepared.status());
  options.run_case = prepared->run_case;
  if (Status status = check_sizes(options); !status.ok()) return fail(program, status);
  ProgressBar bar(program.quiet);
  options.progress = [&](double done, std::string_view what) { bar.show(done, what); };
  options.interrupted = interrupted;
  VerifyReport report_of_rank_0;
  auto body = [&](Group& group) -> Status {
    PLAIT_ASSIGN_OR_RETURN(VerifyReport report, verify_case(options, group));
    if (group.rank() == 0) report_of_rank_0 = std::move(report);
    return {};
  };
  auto finish = [&] {
    if (!options.across_ranks.empty() && !interrupted()) {
      Result<std::vector<CheckLine>> lines = verify_across_ranks(options);
      if (!lines.ok()) return fail(program, lines.status());
      report_of_rank_0.lines.insert(report_of_rank_0.lines.end(), lines->begin(), lines->end());
    }
    bar.clear();
    return show(program, report_of_rank_0);
  };
  return run_on_ranks(program, prepared->standing, options.run_case, body, finish);
}

}  // namespace

void add_verify_command(CLI::App& app, Program& program) {
  CLI::App* command = app.add_subcommand("verify", "Check shapes, numbers, gradients, routing, precision and fallbacks of a case");
  auto arguments = std::make_shared<VerifyArguments>();
  arguments->case_options.attach(*command);
  std::string list = fmt::format("Only these of the list, comma-separated: {}", join_choices(verify_section_names()));
  arguments->sections = command->add_option("--sections", std::as_const(list))->type_name("LIST")->group("Checks");
  arguments->across_ranks = command->add_option("--across-ranks", "Also: one batch over groups of these sizes gives the same bits, as in 1,2,4")
                                ->type_name("LIST")
                                ->group("Checks");
  add_common_options(*command, program);
  command->footer(
      "Example\n"
      "  plait verify --model tiny --ranks 2 --across-ranks 1,2,4\n"
      "\nExit code: 0 every check holds, 1 one does not, 2 bad input, 3 a rank failed, 130 interrupted.");
  command->callback([arguments, &program] { program.action = [arguments, &program] { return verify(program, *arguments); }; });
}

}  // namespace plait::cli
