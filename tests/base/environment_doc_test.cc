#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "plait/env.h"

namespace plait {
namespace {

/// docs/environment.md, from the table behind Env.
std::string environment_page() {
  std::string page =
      "# Environment variables\n\n"
      "Plait reads these variables, and `plait info` shows the values in force. A malformed value is an error; an empty one counts as unset.\n"
      "This page is written by `make docs` from the table in `src/base/env.cc`.\n\n"
      "| variable | default | meaning |\n|---|---|---|\n";
  for (const EnvKnob& knob : env_knobs()) {
    page += "| `" + knob.name + "` | " + (knob.default_value.empty() ? "empty" : "`" + knob.default_value + "`") + " | " + knob.text + " |\n";
  }
  return page;
}

TEST(EnvironmentDoc, IsCurrent) {
  const std::string path = std::string(PLAIT_SOURCE_DIR) + "/docs/environment.md";
  if (std::getenv("PLAIT_UPDATE_DOCS") != nullptr) std::ofstream(path) << environment_page();
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(text.str(), environment_page()) << "run `make docs`";
}

}  // namespace
}  // namespace plait
