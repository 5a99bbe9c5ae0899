#pragma once
/// A small training for the tests: settings, a text, and runs on ranks of this process.

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "plait/context.h"
#include "plait/group.h"
#include "train/trainer.h"

namespace plait::test {

inline std::unique_ptr<Context> make_context(int threads = 1, const std::string& kernel = "") {
  auto context = Context::create({.threads = threads, .kernel = kernel});
  EXPECT_TRUE(context.ok()) << context.status().to_string();
  return context.take();
}

inline const char* sample_text() {
  return "the row that leaves is the row that comes home. each rank reads the rows where they lie and writes the sums where they are due. ";
}

inline train::TrainOptions train_options(DType dtype, int64_t tokens, int64_t hidden = 32) {
  train::TrainOptions options;
  options.layer.hidden = hidden;
  options.layer.intermediate = 24;
  options.layer.dtype = dtype;
  options.layer.router.num_experts = 8;
  options.layer.router.top_k = 2;
  options.layer.router.norm_topk = true;
  options.layer.shared_intermediate = 16;
  options.layer.shared_gate = true;
  options.tokens = tokens;
  options.seed = 7;
  options.text = train::Text::from_bytes(sample_text(), "sample").take();
  return options;
}

struct RunOfRanks {
  int ranks = 2;
  int threads = 1;
  std::string kernel = "";
  int steps = 4;
};

/// The steps' reports; they are equal on all ranks, and that is checked.
inline std::vector<train::TrainStep> train_on_ranks(const train::TrainOptions& options, const RunOfRanks& how) {
  std::vector<std::vector<train::TrainStep>> all(static_cast<size_t>(how.ranks));
  std::vector<Status> statuses = run_ranks(how.ranks, {}, [&](Group& group) -> Status {
    auto context = make_context(how.threads, how.kernel);
    auto trainer = train::Trainer::create(*context, group, options);
    if (!trainer.ok()) return trainer.status();
    for (int step = 0; step < how.steps; ++step) {
      auto report = trainer->step();
      if (!report.ok()) return report.status();
      all[static_cast<size_t>(group.rank())].push_back(report.take());
    }
    return {};
  });
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.to_string();
  for (const auto& steps : all) {
    EXPECT_EQ(steps.size(), all[0].size());
    for (size_t i = 0; i < std::min(steps.size(), all[0].size()); ++i) {
      EXPECT_EQ(steps[i].loss, all[0][i].loss);
      EXPECT_EQ(steps[i].grad_norm, all[0][i].grad_norm);
    }
  }
  return all[0];
}

}  // namespace plait::test
