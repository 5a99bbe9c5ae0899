#pragma once
/// Help texts, made from the options themselves.

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/program.h"

namespace plait::cli {

/// Usage, description, options under their headings, and the example that is the command's footer; at most `columns` wide.
std::string help_text(const CLI::App& command, int columns);

/// Faults for what nobody knows: an option or a sub-command with the nearest name, or a word too many.
std::vector<std::string> unknown_arguments(const CLI::App& app);

/// --json, --quiet and the launcher's --report-fd.
void add_common_options(CLI::App& command, Program& program);

/// Parses a whole number of an option into `to`, or adds a fault to the program.
void read_count(const CLI::Option& option, int64_t low, int64_t& to, Program& program);

}  // namespace plait::cli
