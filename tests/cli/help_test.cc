// What a user meets first: help texts, the version, unknown words, terminals and pipes.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "cli/output.h"
#include "cli/process.h"
#include "cli/text.h"
#include "config/case_fields.h"
#include "plait/version.h"

namespace plait {
namespace {

using test::run_plait;
using test::RunResult;
using Arguments = std::vector<std::string>;

const std::vector<Arguments> commands = {{"run"}, {"verify"}, {"bench", "gmm"}, {"bench", "layer"}, {"info"}};

size_t longest_line(const std::string& text) {
  std::istringstream in(text);
  size_t longest = 0;
  for (std::string line; std::getline(in, line);) longest = std::max(longest, line.size());
  return longest;
}

TEST(Help, EveryCommandHasOneWithAnExampleThatFits80Columns) {
  for (Arguments command : commands) {
    command.push_back("--help");
    RunResult result = run_plait(command);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.err, "");
    EXPECT_NE(result.out.find("Example"), std::string::npos) << result.out;
    EXPECT_NE(result.out.find("  plait " + command[0]), std::string::npos) << result.out;
    EXPECT_NE(result.out.find("--json FILE"), std::string::npos);
    EXPECT_EQ(result.out.find("report-fd"), std::string::npos) << "an option between launcher and rank is no user's business";
    EXPECT_LE(longest_line(result.out), 80U) << result.out;
  }
}

TEST(Help, EveryCaseFieldIsAnOption) {
  for (Arguments command : {Arguments{"run"}, Arguments{"verify"}, Arguments{"bench", "gmm"}, Arguments{"bench", "layer"}}) {
    command.push_back("--help");
    std::string help = run_plait(command).out;
    for (const CaseField& field : case_fields()) {
      std::string option = field.is_flag() ? "--[no-]" + option_name(field.name).substr(2) : option_name(field.name) + " ";
      EXPECT_EQ(help.find(option) != std::string::npos, field.has_option()) << option;
    }
  }
}

TEST(Help, ListsTheCommandsThatExist) {
  RunResult result = run_plait({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* command : {"run", "verify", "bench", "info"}) EXPECT_NE(result.out.find(std::string("\n  ") + command + " "), std::string::npos);
  for (const char* command : {"check", "plan", "report"}) EXPECT_EQ(result.out.find(std::string("\n  ") + command), std::string::npos);
}

TEST(Help, WidthFollowsTheTerminal) {
  test::Process wide({test::program(), "run", "--help"}, {.environment = {}, .folder = "", .terminal = true, .columns = 100});
  test::Process narrow({test::program(), "run", "--help"}, {.environment = {}, .folder = "", .terminal = true, .columns = 64});
  auto columns = [](const std::string& text) { return longest_line(text.substr(0, text.find("\nExample"))) - 1; };  // lines end with CR LF
  size_t wide_columns = columns(wide.wait().out), narrow_columns = columns(narrow.wait().out);
  EXPECT_GT(wide_columns, 80U);
  EXPECT_LE(wide_columns, 100U);
  EXPECT_LE(narrow_columns, 64U);
}

TEST(Help, Version) {
  RunResult result = run_plait({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "plait " + std::string(version()) + "\n");
}

TEST(UnknownWords, OptionsAndCommandsGetTheNearestName) {
  RunResult result = run_plait({"rnu"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("rnu is not a command of plait; did you mean run?"), std::string::npos) << result.err;
  result = run_plait({"run", "--dispacher", "mc2"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("--dispacher is not an option of plait run; did you mean --dispatcher?"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("too many"), std::string::npos) << "the value of an unknown option is no second fault: " << result.err;
  result = run_plait({"bench", "gmn"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("did you mean gmm?"), std::string::npos) << result.err;
  result = run_plait({"info", "more"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("\"more\" is one word too many"), std::string::npos) << result.err;
}

TEST(UnknownWords, AreToldTogetherWithOtherFaults) {
  RunResult result = run_plait({"run", "--model", "tiny", "--toknes", "3", "--ranks", "0", "--rounds", "x"});
  EXPECT_EQ(result.exit_code, 2);
  for (const char* part : {"3 faults", "--toknes", "--ranks: \"0\"", "--rounds: \"x\""}) {
    EXPECT_NE(result.err.find(part), std::string::npos) << part << " in " << result.err;
  }
}

TEST(UnknownWords, NoCommandAtAll) {
  RunResult result = run_plait({});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find("name a command"), std::string::npos);
  EXPECT_EQ(run_plait({"bench"}).exit_code, 2);
}

TEST(UnknownWords, MissingAndRepeatedValues) {
  EXPECT_EQ(run_plait({"run", "--ranks"}).exit_code, 2);
  EXPECT_EQ(run_plait({"run", "--ranks", "2", "--ranks", "4"}).exit_code, 2);
  EXPECT_EQ(run_plait({"run", "--backward=maybe"}).exit_code, 2);
}

TEST(Terminal, ColoursAndBarsOnlyThere) {
  Arguments bad = {test::program(), "run", "--ranks", "0"};
  auto on_terminal = [&](std::map<std::string, std::string> environment) {
    return test::Process(bad, {.environment = std::move(environment), .folder = "", .terminal = true, .columns = 80}).wait().out;
  };
  EXPECT_NE(on_terminal({{"NO_COLOR", ""}, {"TERM", "xterm"}}).find("\x1b["), std::string::npos);
  EXPECT_EQ(on_terminal({{"NO_COLOR", "1"}, {"TERM", "xterm"}}).find("\x1b["), std::string::npos);
  EXPECT_EQ(run_plait({"run", "--ranks", "0"}).err.find('\x1b'), std::string::npos);
}

TEST(Terminal, ProgressLineKeepsToItsWidth) {
  for (int columns : {0, 1, 10, 40, 79, 200}) {
    for (double done : {-1.0, 0.0, 0.5, 1.0, 2.0}) {
      EXPECT_LE(cli::progress_line(done, "alltoall, round 3 of 5, and more words than anybody will ever read", columns).size(),
                static_cast<size_t>(columns));
    }
  }
  EXPECT_EQ(cli::progress_line(0.5, "x", 30), "[#####.....]  50 %  x");
}

TEST(Text, WrapsAtSpaces) {
  EXPECT_EQ(cli::wrap("one two three", 7), (std::vector<std::string>{"one two", "three"}));
  EXPECT_EQ(cli::wrap("", 7), std::vector<std::string>{""});
  EXPECT_EQ(cli::wrap("unbreakable", 3), std::vector<std::string>{"unbreakable"});
  EXPECT_EQ(cli::two_columns("ab", "one two", 6, 10), "  ab  one\n      two\n");
  EXPECT_EQ(cli::two_columns("too long", "x", 6, 10), "  too long\n      x\n");
}

}  // namespace
}  // namespace plait
