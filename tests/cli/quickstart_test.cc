// docs/quickstart.md does what it says: its `sh` blocks run in order in an empty folder, each line must succeed.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <sstream>

#include "cli/process.h"

namespace plait {
namespace {

std::string shell_blocks(const std::string& markdown) {
  std::istringstream in(markdown);
  std::string script = "set -e\n";
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    bool fence = line.rfind("```", 0) == 0;
    if (fence) {
      inside = line == "```sh";
    } else if (inside) {
      script += line + "\n";
    }
  }
  return script;
}

TEST(Quickstart, EveryBlockRuns) {
  std::string script = shell_blocks(test::read_file(std::string(PLAIT_SOURCE_DIR) + "/docs/quickstart.md"));
  ASSERT_NE(script.find("plait run"), std::string::npos);
  test::TemporaryFolder folder;
  std::string path = std::string(PLAIT_BINARY_DIR) + ":" + ::getenv("PATH");
  test::RunResult result = test::Process({"/bin/sh", "-c", script}, {.environment = {{"PATH", path}}, .folder = folder.path()}).wait(300);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"my_case.yaml", "result.json", "words.txt"}));
}

TEST(Quickstart, ExampleConfigurationsAreAccepted) {
  for (const char* name : {"default", "ep_plan", "own_layer"}) {
    std::string config = std::string(PLAIT_SOURCE_DIR) + "/configs/" + name + ".yaml";
    test::RunResult result = test::run_plait({"run", "--config", config, "--tokens", "16", "--rounds", "1", "--ranks", "2"});
    EXPECT_EQ(result.exit_code, 0) << name << ": " << result.err;
    EXPECT_EQ(result.err, "") << name;
  }
}

TEST(Quickstart, WithoutACaseTheDefaultConfigurationRuns) {
  test::TemporaryFolder folder;
  test::RunResult result =
      test::Process({test::program(), "run", "--rounds", "1", "--tokens", "16"}, {.environment = {}, .folder = folder.path()}).wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("qwen3_5_moe_397b"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace plait
