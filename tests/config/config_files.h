#pragma once
/// YAML files for tests, in a folder of their own that goes with the test.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "plait/config.h"

namespace plait::test {

class ConfigFiles : public ::testing::Test {
 protected:
  ConfigFiles() {
    std::string pattern = (std::filesystem::temp_directory_path() / "plait_config_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~ConfigFiles() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) const {
    std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  /// The faults of a file, each without its folder: "x.yaml:3: ...". Empty where it loads.
  std::vector<std::string> faults_of(const std::string& text) {
    Result<Case> loaded = load_case(write("x.yaml", text), &ignored_);
    if (loaded.ok()) return {};
    EXPECT_EQ(loaded.status().code(), StatusCode::invalid_argument);
    return lines_of(loaded.status().message());
  }

  Case loaded(const std::string& text) {
    Result<Case> result = load_case(write("x.yaml", text), &ignored_);
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.status().message());
    return result.ok() ? result.take() : Case{};
  }

  std::vector<std::string> lines_of(std::string message) const {
    std::vector<std::string> lines;
    for (size_t at = message.find(folder_ + "/"); at != std::string::npos; at = message.find(folder_ + "/")) message.erase(at, folder_.size() + 1);
    size_t begin = 0;
    while (begin <= message.size()) {
      size_t end = std::min(message.find('\n', begin), message.size());
      std::string line = message.substr(begin, end - begin);
      line.erase(0, line.find_first_not_of(' '));
      bool heading = line.size() > 7 && line.compare(line.size() - 7, 7, "faults:") == 0;
      if (!line.empty() && !heading) lines.push_back(line);
      begin = end + 1;
    }
    return lines;
  }

  std::string folder_;
  std::vector<std::string> ignored_;
};

}  // namespace plait::test
