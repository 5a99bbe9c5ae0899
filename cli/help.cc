#include "cli/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <sstream>

#include "cli/text.h"
#include "config/field_text.h"
#include "config/nearest.h"

namespace plait::cli {
namespace {

constexpr int help_indent = 24;

std::string left_side(const CLI::Option& option) {
  const std::vector<std::string>& names = option.get_lnames();
  std::string text;
  for (const std::string& name : option.get_snames()) text += "-" + name + ", ";
  text += "--" + names.front();
  bool is_flag = option.get_items_expected_max() == 0;
  bool has_opposite = std::find(names.begin(), names.end(), "no-" + names.front()) != names.end();
  if (has_opposite) return "--[no-]" + names.front();
  return is_flag ? text : text + " " + option.get_type_name();
}

std::string option_section(const CLI::App& command, const std::string& heading, int columns) {
  std::string text;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group() == heading) text += two_columns(left_side(*option), option->get_description(), help_indent, columns);
  }
  return text.empty() ? text : "\n" + heading + "\n" + text;
}

std::string command_section(const CLI::App& app, int columns) {
  std::string text;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    text += two_columns(command->get_name(), command->get_description(), 12, columns);
  }
  return text.empty() ? text : "\nCommands\n" + text;
}

std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name() : full_name(*parent) + " " + command.get_name();
}

// In the order of their first option, the one that every command has last.
std::vector<std::string> headings(const CLI::App& command) {
  constexpr std::string_view last = "Output";
  std::vector<std::string> result = command.get_groups();
  result.erase(std::remove(result.begin(), result.end(), std::string()), result.end());
  std::stable_partition(result.begin(), result.end(), [&](const std::string& heading) { return heading != last; });
  return result;
}

// Examples are indented and stay as they are.
std::string wrapped_footer(const std::string& footer, int columns) {
  std::istringstream in(footer);
  std::string text;
  for (std::string line; std::getline(in, line);) {
    bool example = line.rfind("  ", 0) == 0;
    for (const std::string& part : example ? std::vector<std::string>{line} : wrap(line, columns)) text += part + "\n";
  }
  return text;
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) names.push_back(command->get_name());
  return names;
}

std::string unknown(std::string_view word, std::string_view what, const CLI::App& command, const std::vector<std::string>& known) {
  std::string near = nearest_name(word, known);
  if (!near.empty()) return fmt::format("{} is not {} of {}; did you mean {}?", word, what, full_name(command), near);
  return fmt::format("{} is not {} of {}; see {} --help", word, what, full_name(command), full_name(command));
}

}  // namespace

std::string help_text(const CLI::App& command, int columns) {
  std::string text;
  for (const std::string& line : wrap(command.get_description(), columns)) text += line + "\n";
  bool has_commands = !command_names(command).empty();
  text += fmt::format("\nUsage: {} {}\n", full_name(command), has_commands ? "COMMAND [OPTIONS]" : "[OPTIONS]");
  text += command_section(command, columns);
  for (const std::string& heading : headings(command)) text += option_section(command, heading, columns);
  if (!command.get_footer().empty()) text += "\n" + wrapped_footer(command.get_footer(), columns);
  return text;
}

std::vector<std::string> unknown_arguments(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  std::vector<std::string> faults;
  bool may_be_a_value = false;
  for (const std::string& word : app.remaining(true)) {
    bool is_option = word.size() > 1 && word[0] == '-';
    std::string name = word.substr(0, word.find('='));
    std::vector<std::string> commands = command_names(*command);
    if (is_option) {
      faults.push_back(unknown(name, "an option", *command, option_names(*command)));
    } else if (!commands.empty()) {
      faults.push_back(unknown(word, "a command", *command, commands));
    } else if (!may_be_a_value) {
      faults.push_back(fmt::format("\"{}\" is one word too many; see {} --help", word, full_name(*command)));
    }
    may_be_a_value = is_option && name == word;
  }
  return faults;
}

void add_common_options(CLI::App& command, Program& program) {
  constexpr const char* heading = "Output";
  command.add_option("--json", program.json, "Write the result as JSON too; - writes it to stdout instead of the text")
      ->type_name("FILE")
      ->group(heading);
  command.add_flag("--quiet", program.quiet, "No progress and no notes on stderr")->group(heading);
  command.add_option("--report-fd", program.report_fd)->group("");
}

void read_count(const CLI::Option& option, int64_t low, int64_t& to, Program& program) {
  if (option.count() == 0) return;
  auto value = parse_integer(option.results().front(), low, std::numeric_limits<int32_t>::max());
  if (value) {
    to = *value;
  } else {
    program.faults.push_back(fmt::format("--{}: \"{}\" is not allowed. Allowed: a whole number of at least {}.", option.get_lnames().front(),
                                         option.results().front(), low));
  }
}

}  // namespace plait::cli
