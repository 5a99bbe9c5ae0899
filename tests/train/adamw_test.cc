#include "train/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "support/test_tensors.h"
#include "train_support.h"

namespace plait::train {
namespace {

/// A sharded and a replicated parameter of a rank.
std::vector<ParameterSpec> two_specs(DType dtype, int rank, int64_t experts_per_rank) {
  auto first = static_cast<uint64_t>(rank * experts_per_rank * 6);
  return {{Stream::router, dtype, {5, 3}, 1.0F, false, 0, true}, {Stream::gate_up, dtype, {experts_per_rank, 2, 3}, 1.0F, true, first, true}};
}

void fill_gradients(const ParameterSet& set, int step) {
  for (const Parameter& item : set.items()) {
    test::Random random(static_cast<uint64_t>(step * 10) + static_cast<uint64_t>(item.spec.id));
    for (int64_t i = 0; i < item.gradient.num_elements(); ++i) test::set(item.gradient, i, random.uniform(-1, 1));
  }
}

TEST(AdamW, EqualsFloat64OverManySteps) {
  auto context = test::make_context(2);
  ParameterSet set = ParameterSet::create(*context, two_specs(DType::f32, 0, 2), 1).take();
  AdamWOptions options{.learning_rate = 0.01F, .beta1 = 0.9F, .beta2 = 0.95F, .epsilon = 1e-8F, .weight_decay = 0.1F};
  AdamW optimizer = AdamW::create(*context, set, options).take();
  std::vector<double> w = test::to_vector(set.value(Stream::gate_up)), m(w.size()), v(w.size());
  for (int step = 1; step <= 20; ++step) {
    fill_gradients(set, step);
    std::vector<double> g = test::to_vector(set.gradient(Stream::gate_up));
    optimizer.step(*context, set, 0.5F);
    for (size_t i = 0; i < w.size(); ++i) {
      double gradient = 0.5 * g[i];
      m[i] = 0.9 * m[i] + 0.1 * gradient;
      v[i] = 0.95 * v[i] + 0.05 * gradient * gradient;
      w[i] -= 0.01 * (m[i] / (1 - std::pow(0.9, step)) / (std::sqrt(v[i] / (1 - std::pow(0.95, step))) + 1e-8) + 0.1 * w[i]);
    }
  }
  std::vector<double> computed = test::to_vector(set.value(Stream::gate_up));
  for (size_t i = 0; i < w.size(); ++i) EXPECT_NEAR(computed[i], w[i], 2e-6);
}

TEST(AdamW, MastersKeepWhatTheWorkingTypeCannot) {
  auto context = test::make_context();
  ParameterSet set = ParameterSet::create(*context, two_specs(DType::bf16, 0, 1), 1).take();
  for (int64_t i = 0; i < 15; ++i) test::set(set.value(Stream::router), i, 1.0);
  AdamWOptions options{.learning_rate = 1e-4F, .weight_decay = 0};
  AdamW optimizer = AdamW::create(*context, set, options).take();
  for (int step = 0; step < 100; ++step) {
    for (int64_t i = 0; i < 15; ++i) test::set(set.gradient(Stream::router), i, 1.0);
    optimizer.step(*context, set, 1.0F);
  }
  // A step of 1e-4 is lost in a bf16 of 1 (spacing 2^-8 below it); a hundred of them make 0.01.
  EXPECT_NEAR(test::get(set.value(Stream::router), 0), 0.99, 0.003);
}

TEST(GradientReport, CountsShardsOfAllRanksAndReplicatedOnesOnce) {
  // Squared norms 20 on rank 0 and 100 on rank 1, as sums over ranks and not as their mean; plus 5 of a replicated parameter.
  std::vector<Status> statuses = run_ranks(2, {}, [](Group& group) -> Status {
    auto context = test::make_context();
    ParameterSet set = ParameterSet::create(*context, two_specs(DType::f32, group.rank(), 2), 1).take();
    set.zero_gradients();
    test::set(set.gradient(Stream::gate_up), 0, group.rank() == 0 ? 4 : 8);
    test::set(set.gradient(Stream::gate_up), 7, group.rank() == 0 ? -2 : 6);
    test::set(set.gradient(Stream::router), 3, 2);
    test::set(set.gradient(Stream::router), 4, 1);
    auto report = gradient_report(*context, group, set, 1.0F);
    if (!report.ok()) return report.status();
    EXPECT_DOUBLE_EQ(report->norm, std::sqrt(125.0));
    EXPECT_EQ(report->nonfinite, 0);
    auto half = gradient_report(*context, group, set, 0.5F);
    if (!half.ok()) return half.status();
    EXPECT_DOUBLE_EQ(half->norm, std::sqrt(125.0) / 2);
    if (group.rank() == 1) test::set(set.gradient(Stream::gate_up), 2, std::numeric_limits<double>::infinity());
    test::set(set.gradient(Stream::router), 0, std::numeric_limits<double>::quiet_NaN());
    auto broken = gradient_report(*context, group, set, 1.0F);
    if (!broken.ok()) return broken.status();
    EXPECT_EQ(broken->nonfinite, 2);
    return {};
  });
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(GradientReport, NormHasTheSameBitsOnAnyNumberOfRanks) {
  std::vector<double> norms;
  for (int ranks : {1, 2, 4}) {
    std::vector<Status> statuses = run_ranks(ranks, {}, [&](Group& group) -> Status {
      auto context = test::make_context();
      int64_t experts = 4 / ranks;
      ParameterSet set = ParameterSet::create(*context, two_specs(DType::f32, group.rank(), experts), 1).take();
      // Gradients by global index, as the layer's are.
      for (const Parameter& item : set.items()) {
        for (int64_t i = 0; i < item.gradient.num_elements(); ++i) {
          test::set(item.gradient, i, random_normal(8, item.spec.id, item.spec.first_index + static_cast<uint64_t>(i)));
        }
      }
      auto report = gradient_report(*context, group, set, 0.3F);
      if (!report.ok()) return report.status();
      if (group.rank() == 0) norms.push_back(report->norm);
      return {};
    });
    for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.to_string();
  }
  ASSERT_EQ(norms.size(), 3U);
  EXPECT_EQ(norms[0], norms[1]);
  EXPECT_EQ(norms[0], norms[2]);
}

}  // namespace
}  // namespace plait::train
