#pragma once
/// Both engines with common memory, in groups of several sizes: every test body here runs on all of them.

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "plait/group.h"
#include "support/processes.h"

namespace plait::test {

class OnEngine : public testing::TestWithParam<Engine> {};
class OnEngineAndSize : public testing::TestWithParam<std::tuple<Engine, int>> {
 protected:
  Engine engine() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
};

inline std::string engine_test_name(const testing::TestParamInfo<Engine>& info) { return std::string(name(info.param)); }
inline std::string engine_size_test_name(const testing::TestParamInfo<std::tuple<Engine, int>>& info) {
  return std::string(name(std::get<0>(info.param))) + "_" + std::to_string(std::get<1>(info.param));
}

inline const auto both_engines = testing::Values(Engine::threads, Engine::shm);
inline const auto all_sizes = testing::Values(1, 2, 3, 4, 7, 8);

/// What a failed check of a body becomes.
inline Status wrong(const std::string& text) { return Status::internal("check failed: " + text); }

/// Byte i of what rank `source` sends in step `step`: says where it came from.
inline std::byte origin(int source, int step, int64_t i) {
  return static_cast<std::byte>(
      (static_cast<uint64_t>(source) * 131 + static_cast<uint64_t>(step) * 31 + static_cast<uint64_t>(i) * 7 + static_cast<uint64_t>(i) / 256) &
      0xff);
}
inline std::vector<std::byte> origin_bytes(int source, int step, int64_t bytes) {
  std::vector<std::byte> data(static_cast<size_t>(bytes));
  for (int64_t i = 0; i < bytes; ++i) data[static_cast<size_t>(i)] = origin(source, step, i);
  return data;
}
/// Ok where data is what that rank sent in that step.
inline Status check_origin(const std::byte* data, int64_t bytes, int source, int step) {
  for (int64_t i = 0; i < bytes; ++i) {
    if (data[i] != origin(source, step, i)) {
      return wrong("byte " + std::to_string(i) + " of " + std::to_string(bytes) + " from rank " + std::to_string(source) + " in step " +
                   std::to_string(step));
    }
  }
  return {};
}

}  // namespace plait::test
