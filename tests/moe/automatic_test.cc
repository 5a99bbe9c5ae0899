// auto over whole calls: all ranks choose alike, learn from every call of the group, and remember between groups.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "support/layer_case.h"
#include "support/processes.h"

namespace plait::test {
namespace {

class Automatic : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / unique_job();
    setenv("PLAIT_CACHE", folder_.c_str(), 1);
  }
  void TearDown() override {
    setenv("PLAIT_CACHE", "off", 1);
    std::filesystem::remove_all(folder_);
  }

  /// Steps of a new group of three ranks; what auto said in each step, per rank.
  std::vector<std::vector<std::string>> run(const std::vector<Dispatcher>& steps) const {
    std::vector<std::vector<std::string>> said(3);
    const std::vector<Status> statuses = run_with_contexts(3, {.threads = 1, .kernel = {}}, [&](const Context& context, Group& group) -> Status {
      LayerInputs in = make_inputs(config(), {.tokens = 30, .seed = 4});
      const int rank = group.rank();
      for (const Dispatcher dispatcher : steps) {
        in.config.dispatcher = dispatcher;
        RankResult r = make_rank_result(in, split_, rank);
        const LayerWeights weights = rank_weights(in, rank, 3);
        PLAIT_ASSIGN_OR_RETURN(const LayerState state,
                               layer_forward(context, group, in.config, weights, rank_rows(in.x, split_, rank), r.y, rank_routing(in, split_, rank)));
        if (dispatcher == Dispatcher::automatic) {
          said[static_cast<size_t>(rank)].push_back(std::string(name(state.dispatcher)) + ": " + state.dispatcher_reason);
        }
        PLAIT_RETURN_IF_ERROR(layer_backward(context, group, in.config, weights, rank_rows(in.x, split_, rank), state, rank_rows(in.dy, split_, rank),
                                             r.dx, gradients_of(r), r.dweights));
      }
      return {};
    });
    for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.to_string();
    return said;
  }

  static LayerConfig config() {
    LayerConfig config = small_config(DType::bf16);
    config.router.num_experts = 9;
    return config;
  }

  std::filesystem::path folder_;
  const TokenSplit split_ = {20, 0, 10};
};

constexpr Dispatcher fused = Dispatcher::mc2, unfused = Dispatcher::alltoall, choose = Dispatcher::automatic;

TEST_F(Automatic, RanksWithUnequalTokensChooseAlike) {
  const auto said = run(std::vector<Dispatcher>(30, choose));
  EXPECT_EQ(said[0], said[1]);
  EXPECT_EQ(said[0], said[2]);
  EXPECT_EQ(said[0][0], "mc2: first call of this shape");
  EXPECT_NE(said[0][1].find(": rule: copies of alltoall"), std::string::npos) << said[0][1];
  EXPECT_NE(said[0].back().find(": measured step: "), std::string::npos) << said[0].back();
}

TEST_F(Automatic, LearnsFromCallsOfTheOthersToo) {
  const auto said = run({fused, fused, fused, unfused, unfused, unfused, choose});
  EXPECT_NE(said[0][0].find(": measured step: "), std::string::npos) << said[0][0];
}

TEST_F(Automatic, WhatOneGroupMeasuredTheNextOneKnows) {
  run({fused, fused, fused, unfused, unfused, unfused, choose, choose});
  ASSERT_TRUE(std::filesystem::exists(folder_ / "dispatchers.txt"));
  const auto said = run({choose, choose, choose});
  EXPECT_EQ(said[1], said[0]);
  EXPECT_EQ(said[0][0], "mc2: first call of this shape");  // how many tokens there are is known after it
  EXPECT_NE(said[0][2].find(": measured step: "), std::string::npos) << said[0][2];
}

TEST_F(Automatic, WithoutACacheNothingIsKept) {
  setenv("PLAIT_CACHE", "off", 1);
  run({fused, fused, fused, unfused, unfused, unfused, choose, choose});
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

}  // namespace
}  // namespace plait::test
