#pragma once
/// The sub-commands. Each adds itself to the parser and, once chosen, sets program.action.

#include <CLI/CLI.hpp>

#include "cli/program.h"

namespace plait::cli {

void add_run_command(CLI::App& app, Program& program);
void add_verify_command(CLI::App& app, Program& program);
void add_bench_command(CLI::App& app, Program& program);
void add_info_command(CLI::App& app, Program& program);

}  // namespace plait::cli
