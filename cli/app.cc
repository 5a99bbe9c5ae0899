#include "cli/app.h"

#include <fcntl.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <string>

#include "cli/commands.h"
#include "cli/help.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "cli/text.h"
#include "plait/version.h"

namespace plait::cli {
namespace {

constexpr int exit_bad_input = 2;

void prepare_parser(CLI::App& app) {
  app.name("plait");
  app.description("Mixture-of-Experts layers under expert parallelism on CPUs, with the exchange fused into the matrix multiplications.");
  app.set_version_flag("--version", "plait " + std::string(version()), "Show the version")->group("Output");
  app.footer("plait COMMAND --help shows the options of a command and an example.");
}

// Unknown words are gathered instead of thrown, so that they are told together with all other faults; `program.command` names the chosen one.
void finish_parser(CLI::App& app, Program& program) {
  app.allow_extras(true);
  app.require_subcommand(0, 1);
  app.set_help_flag("-h,--help", "Show this text")->group("Output");
  app.formatter_fn([](const CLI::App* command, std::string, CLI::AppFormatMode) { return help_text(*command, text_columns()); });
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) finish_parser(*command, program);
}

std::string command_name(const CLI::App& app) {
  std::string name = app.get_name();
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    name += " " + command->get_name();
  }
  return name;
}

int run_parsed(CLI::App& app, Program& program) {
  program.command = command_name(app);
  program.faults = unknown_arguments(app);
  if (program.report_fd >= 0) {
    ::fcntl(program.report_fd, F_SETFD, FD_CLOEXEC);
    install_interrupt_handlers(InterruptPolicy::supervised);
  }
  if (program.action) return program.action();
  if (Status status = check_faults(program); !status.ok()) return fail(program, status);
  const CLI::App* chosen = &app;
  while (!chosen->get_subcommands().empty()) chosen = chosen->get_subcommands().front();
  print_error(program.command, "name a command\n\n" + help_text(*chosen, text_columns()));
  return exit_bad_input;
}

int run_guarded(int argc, char** argv) {
  Program program;
  program.arguments.assign(argv, argv + argc);
  CLI::App app;
  prepare_parser(app);
  add_run_command(app, program);
  add_verify_command(app, program);
  add_bench_command(app, program);
  add_info_command(app, program);
  finish_parser(app, program);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    program.command = command_name(app);
    print_error(program.command, std::string(error.what()) + "; see " + program.command + " --help");
    return exit_bad_input;
  }
  return run_parsed(app, program);
}

}  // namespace

int run_program(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);  // a reader that leaves early (`| head`) is no failure of a rank
  try {
    return run_guarded(argc, argv);
  } catch (const std::exception& error) {
    print_error("plait", std::string("unexpected: ") + error.what());
    return 3;
  }
}

}  // namespace plait::cli
