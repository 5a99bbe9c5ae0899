// docs/command_line.md shows the help texts that the program prints. PLAIT_UPDATE_DOCS=1 writes them anew.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <sstream>

#include "cli/process.h"

namespace plait {
namespace {

std::string help_of(const std::string& command_line) {
  std::istringstream words(command_line);
  std::vector<std::string> arguments;
  for (std::string word; words >> word;) arguments.push_back(word);
  arguments.erase(arguments.begin());
  return test::run_plait(arguments).out;
}

// The page with the content of every "```text plait ..." block replaced by what that command prints.
std::string with_fresh_help(const std::string& page) {
  const std::string fence = "```text ";
  std::istringstream in(page);
  std::string result;
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    bool opens = line.rfind(fence, 0) == 0;
    if (inside && line != "```") continue;
    inside = opens;
    result += line + "\n";
    if (opens) result += help_of(line.substr(fence.size()));
  }
  return result;
}

TEST(CommandLineDoc, ShowsWhatTheProgramPrints) {
  std::string path = std::string(PLAIT_SOURCE_DIR) + "/docs/command_line.md";
  std::string page = test::read_file(path);
  std::string fresh = with_fresh_help(page);
  ASSERT_NE(fresh.find("Usage: plait run"), std::string::npos);
  if (::getenv("PLAIT_UPDATE_DOCS") != nullptr) std::ofstream(path) << fresh;
  EXPECT_EQ(test::read_file(path), fresh) << "run `make docs`";
}

}  // namespace
}  // namespace plait
