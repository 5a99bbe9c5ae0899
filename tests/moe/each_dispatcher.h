#pragma once
/// A test suite that runs once per dispatcher.

#include <gtest/gtest.h>

#include <string>

#include "support/layer_case.h"

namespace plait::test {

class EachDispatcher : public testing::TestWithParam<Dispatcher> {
 public:
  /// small_config() with the dispatcher of the running test.
  static LayerConfig tested_config(DType dtype) {
    LayerConfig config = small_config(dtype);
    config.dispatcher = under_test_;
    return config;
  }

 protected:
  void SetUp() override { under_test_ = GetParam(); }

 private:
  static inline Dispatcher under_test_ = Dispatcher::alltoall;
};

inline LayerConfig tested_config(DType dtype) { return EachDispatcher::tested_config(dtype); }

/// For INSTANTIATE_TEST_SUITE_P.
inline auto each_dispatcher() { return testing::ValuesIn(all_dispatchers().begin(), all_dispatchers().end()); }
inline std::string dispatcher_name(const testing::TestParamInfo<Dispatcher>& info) { return std::string(name(info.param)); }

}  // namespace plait::test
