#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/output.h"
#include "cli/preflight.h"
#include "cli/signals.h"
#include "config/field_text.h"
#include "observe/bench_gmm.h"
#include "observe/bench_layer.h"

namespace plait::cli {
namespace {

struct BenchArguments {
  CaseOptions case_options;
  CLI::Option* seconds = nullptr;
  bool transposed = false;
};

// What one rank of the case computes: its experts, with their share of all ranks' tokens.
GmmCase gmm_case_of(const Case& of, bool transposed) {
  const RouterConfig& router = of.layer.router;
  int64_t rows = of.ranks * of.tokens * router.top_k / router.num_experts;
  return {of.layer.hidden, of.layer.intermediate, std::max<int64_t>(rows, 1), router.num_experts / of.ranks, of.layer.dtype, transposed, of.skew};
}

void read_seconds(const CLI::Option& option, double& to, Program& program) {
  if (option.count() == 0) return;
  constexpr double shortest_s = 0.001, longest_s = 3600;
  auto value = parse_number(option.results().front(), shortest_s, longest_s);
  if (value) {
    to = *value;
  } else {
    program.faults.push_back(
        fmt::format("--seconds: \"{}\" is not allowed. Allowed: a number of seconds from 0.001 to 3600.", option.results().front()));
  }
}

template <typename Options>
void connect(Options& options, ProgressBar& bar) {
  install_interrupt_handlers(InterruptPolicy::alone);
  options.progress = [&bar](double done, std::string_view what) { bar.show(done, what); };
  options.interrupted = interrupted;
}

/// Prints and writes what was measured; the exit code.
template <typename Report>
int finish(Program& program, const Result<Report>& report) {
  if (!report.ok()) return fail(program, report.status());
  if (program.json != "-") print_result(format_table(*report));
  if (Status status = write_json(program.json, to_json(*report)); !status.ok()) return fail(program, status);
  return interrupted() ? fail(program, Status::interrupted("stopped by a signal")) : 0;
}

Result<BenchGmmReport> measure(const BenchArguments& arguments, const Program& program, BenchGmmOptions& options, ProgressBar& bar) {
  PLAIT_RETURN_IF_ERROR(prepare_process(program, -1));
  const bool one_case = arguments.case_options.any_given_but("threads");
  PLAIT_ASSIGN_OR_RETURN(
      Case of, one_case ? arguments.case_options.resolve_alone(program, {}) : arguments.case_options.resolve_alone(program, {{"model", "tiny"}}));
  if (one_case) options.cases = {gmm_case_of(of, arguments.transposed)};
  PLAIT_ASSIGN_OR_RETURN(std::unique_ptr<Context> context, Context::create({.threads = of.threads}));
  connect(options, bar);
  return bench_gmm(*context, options);
}

int bench_gmm_command(Program& program, const BenchArguments& arguments) {
  BenchGmmOptions options;
  read_seconds(*arguments.seconds, options.seconds_per_case, program);
  ProgressBar bar(program.quiet);
  const Result<BenchGmmReport> report = measure(arguments, program, options, bar);
  bar.clear();
  return finish(program, report);
}

Result<BenchLayerReport> measure(const BenchArguments& arguments, const Program& program, BenchLayerOptions& options, ProgressBar& bar) {
  PLAIT_RETURN_IF_ERROR(prepare_process(program, -1));
  const bool shape_given = arguments.case_options.any_given_but("threads");
  PLAIT_ASSIGN_OR_RETURN(options.run_case, shape_given
                                               ? arguments.case_options.resolve_alone(program, {})
                                               : arguments.case_options.resolve_alone(program, {{"model", "qwen3_30b_a3b"}, {"scale", "1/4"}}));
  PLAIT_ASSIGN_OR_RETURN(std::unique_ptr<Context> context, Context::create({.threads = options.run_case.threads}));
  connect(options, bar);
  return bench_layer(*context, options);
}

int bench_layer_command(Program& program, const BenchArguments& arguments) {
  BenchLayerOptions options;
  read_seconds(*arguments.seconds, options.seconds, program);
  ProgressBar bar(program.quiet);
  const Result<BenchLayerReport> report = measure(arguments, program, options, bar);
  bar.clear();
  return finish(program, report);
}

void add_gmm(CLI::App& group, Program& program) {
  CLI::App* command = group.add_subcommand("gmm", "Measure the grouped matmul: forward, dX and dW beside the machine's peak");
  auto arguments = std::make_shared<BenchArguments>();
  arguments->case_options.attach(*command);
  arguments->seconds = command->add_option("--seconds", "Time for each shape and operator [0.5]")->type_name("S")->group("Measuring");
  command->add_flag("--transposed", arguments->transposed, "Weights stored (E,N,K)")->group("Measuring");
  add_common_options(*command, program);
  command->footer(
      "Without a CASE a grid of shapes is measured; with one, what a rank of it computes: ranks * tokens * topk / experts rows for each of its "
      "experts / ranks experts.\n"
      "\nExamples\n"
      "  plait bench gmm\n"
      "  plait bench gmm --model qwen3_30b_a3b --scale 1/4 --ranks 4 --tokens 512");
  command->callback([arguments, &program] { program.action = [arguments, &program] { return bench_gmm_command(program, *arguments); }; });
}

void add_layer(CLI::App& group, Program& program) {
  CLI::App* command = group.add_subcommand("layer", "Measure the stages of a whole layer on one rank, each beside its bound");
  auto arguments = std::make_shared<BenchArguments>();
  arguments->case_options.attach(*command);
  arguments->seconds = command->add_option("--seconds", "Time for all rounds together [2]")->type_name("S")->group("Measuring");
  add_common_options(*command, program);
  command->footer(
      "One rank computes the whole case. Without a CASE: qwen3_30b_a3b at a quarter of its sizes.\n"
      "\nExamples\n"
      "  plait bench layer\n"
      "  plait bench layer --model mixtral_8x7b --scale 1/8 --dispatcher mc2");
  command->callback([arguments, &program] { program.action = [arguments, &program] { return bench_layer_command(program, *arguments); }; });
}

}  // namespace

void add_bench_command(CLI::App& app, Program& program) {
  CLI::App* group = app.add_subcommand("bench", "Measure one part alone");
  add_gmm(*group, program);
  add_layer(*group, program);
}

}  // namespace plait::cli
