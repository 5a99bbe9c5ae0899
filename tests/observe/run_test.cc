#include "observe/run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "observe/measure.h"
#include "observe/routing_report.h"
#include "observe/run_phases.h"
#include "run_support.h"
#include "support/test_tensors.h"
#include "train/parameters.h"

namespace plait {
namespace {

RunOptions small_run(int ranks = 2) {
  RunOptions options;
  options.run_case = test::small_case(ranks);
  options.rounds = 2;
  return options;
}

TEST(RunCase, DispatchersAreEqualAndMeasured) {
  RunReport report = test::run_on_ranks(small_run());
  EXPECT_TRUE(all_checks_hold(report));
  ASSERT_EQ(report.dispatchers.size(), 2U);
  ASSERT_EQ(report.comparisons.size(), 1U);
  EXPECT_TRUE(report.comparisons[0].bitwise_equal) << report.comparisons[0].first_difference;
  EXPECT_EQ(report.comparisons[0].diff_dweights, 0);
  EXPECT_GT(report.comparisons[0].speedup, 0);
  for (const DispatcherReport& d : report.dispatchers) {
    EXPECT_EQ(d.step.n, 2);
    EXPECT_GT(d.step.median, 0);
    EXPECT_LE(d.step.min, d.step.median);
    EXPECT_LE(d.step.median, d.step.max);
    EXPECT_GT(d.forward.median, 0);
    EXPECT_GT(d.backward.median, 0);
    EXPECT_GT(d.gmm.median, 0);
    EXPECT_GT(d.comm.median, 0);
    EXPECT_LE(d.gmm.max, d.step.max);
    EXPECT_LE(d.comm.max, d.step.max);
    EXPECT_GT(d.comm_only.median, 0);
    EXPECT_GE(d.exposed_comm.min, 0);
    EXPECT_EQ(d.compute_only.n, 2);
    EXPECT_GT(d.compute_only.min, 0);
    EXPECT_GT(d.eta, 0);
    EXPECT_GT(d.utilisation, 0);
    EXPECT_GT(d.tokens_per_s, 0);
    EXPECT_GT(d.bytes_sent, 0);
    EXPECT_GT(d.peak_bytes, 0);
    EXPECT_GT(d.resident_bytes, 0);
    EXPECT_EQ(d.step_per_rank.size(), 2U);
  }
  ASSERT_EQ(report.routing.size(), 1U);
  int64_t entries = 0;
  for (int64_t n : report.routing[0].tokens_per_expert) entries += n;
  EXPECT_EQ(entries, 2 * 20 * 2);
  EXPECT_FALSE(report.interrupted);
}

TEST(RunCase, EveryCaseShapeRuns) {
  for (int ranks : {1, 4}) {
    RunOptions options = small_run(ranks);
    options.rounds = 1;
    options.run_case.layer.shared_intermediate = 16;
    options.run_case.skew = 1.0;
    EXPECT_TRUE(all_checks_hold(test::run_on_ranks(options)));
    options.run_case.skew = 0;
    options.run_case.tokens = 0;
    EXPECT_TRUE(all_checks_hold(test::run_on_ranks(options)));
    options.run_case.tokens = 5;
    options.run_case.backward = false;
    RunReport report = test::run_on_ranks(options);
    EXPECT_TRUE(all_checks_hold(report));
    EXPECT_LT(report.dispatchers[0].backward.median, report.dispatchers[0].forward.median);
  }
}

TEST(RunCase, AFlippedBitOfAWeightIsFound) {
  const std::pair<train::Stream, bool> weights[] = {{train::Stream::gate_up, true}, {train::Stream::down, true}, {train::Stream::router, false}};
  for (auto [id, changes_experts] : weights) {
    RunOptions options = small_run();
    options.rounds = 1;
    options.run_case.layer.dtype = DType::f32;
    options.before_check = [id = id](Dispatcher dispatcher, const train::LayerParameters& parameters) {
      if (dispatcher == Dispatcher::alltoall) parameters.set().value(id).data[3] ^= std::byte{0x40};  // an exponent bit: the value changes a lot
    };
    RunReport report = test::run_on_ranks(options);
    EXPECT_FALSE(all_checks_hold(report)) << gradient_name(id);
    EXPECT_FALSE(report.comparisons[0].bitwise_equal);
    EXPECT_NE(report.comparisons[0].first_difference, "");
    EXPECT_GT(report.comparisons[0].diff_y, 0);
    EXPECT_TRUE(!changes_experts || report.comparisons[0].diff_dx > 0);
    EXPECT_NE(format_table(report).find("bitwise equal NO"), std::string::npos);
  }
}

TEST(RunCase, TrainsInterleavedWithEqualLosses) {
  test::TemporaryFile text("train_text", "abcabcabcabd");
  RunOptions options = small_run();
  options.rounds = 1;
  options.steps = 5;
  options.run_case.input = text.path();
  std::vector<std::string> seen;
  options.progress = [&](double done, std::string_view what) {
    EXPECT_GE(done, 0);
    EXPECT_LE(done, 1);
    if (what.starts_with("step")) seen.emplace_back(what);
  };
  RunReport report = test::run_on_ranks(options);
  EXPECT_TRUE(all_checks_hold(report));
  ASSERT_EQ(report.dispatchers[0].loss.size(), 5U);
  EXPECT_EQ(report.dispatchers[0].loss, report.dispatchers[1].loss);
  EXPECT_EQ(report.dispatchers[0].grad_norm, report.dispatchers[1].grad_norm);
  EXPECT_EQ(report.routing.size(), 5U);
  ASSERT_EQ(seen.size(), 10U);
  EXPECT_EQ(seen[0], "step 1 of 5: eager");
  EXPECT_EQ(seen[1], "step 1 of 5: alltoall");
  report.dispatchers[1].loss[3] = std::nextafter(report.dispatchers[1].loss[3], 0.0);
  EXPECT_FALSE(all_checks_hold(report));
}

TEST(RunCase, InterruptionGivesAPartialReport) {
  RunOptions options = small_run();
  options.rounds = 1000000;
  std::atomic<int> polls = 0;
  options.interrupted = [&] { return ++polls > 20; };
  RunReport report = test::run_on_ranks(options);
  EXPECT_TRUE(report.interrupted);
  EXPECT_GT(report.dispatchers[0].step.n, 0);
  EXPECT_LT(report.dispatchers[0].step.n, 20);
  options.interrupted = [] { return true; };
  report = test::run_on_ranks(options);
  EXPECT_TRUE(report.interrupted);
  EXPECT_EQ(report.dispatchers[0].step.n, 0);
  EXPECT_NE(format_table(report).find("interrupted"), std::string::npos);
}

void expect_refused(const RunOptions& options, int ranks, const char* part) {
  std::vector<Status> statuses = run_ranks(ranks, {}, [&](Group& group) { return run_case(options, group).status(); });
  for (const Status& status : statuses) {
    EXPECT_FALSE(status.ok()) << part;
    EXPECT_NE(status.message().find(part), std::string::npos) << status.to_string();
  }
}

TEST(RunCase, BadInputIsAnErrorOnAllRanks) {
  RunOptions options = small_run();
  expect_refused(options, 1, "ranks = 2");
  options.run_case.input = "/no/such/file";
  expect_refused(options, 2, "/no/such/file");
  options = small_run();
  options.rounds = 0;
  expect_refused(options, 2, "rounds = 0");
  options = small_run();
  options.steps = 1;
  options.run_case.input = "rows.npy";
  expect_refused(options, 2, "steps = 1");
  options = small_run();
  options.run_case.layer.router.num_experts = 7;
  expect_refused(options, 2, "7");
}

TEST(RunReport, JsonHasEveryKeyAndTableEveryRow) {
  RunOptions options = small_run();
  options.steps = 1;
  RunReport report = test::run_on_ranks(options);
  nlohmann::ordered_json json = to_json(report);
  for (const char* key : {"version", "machine", "case", "dispatchers", "compare", "loss", "grad_norm", "nonfinite", "routing"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  for (const char* key : {"ranks", "tokens", "hidden", "intermediate", "experts", "topk", "dtype", "shared_expert", "engine", "threads", "chunks",
                          "skew", "input", "seed", "backward", "dispatcher", "model"}) {
    EXPECT_TRUE(json["case"].contains(key)) << key;
  }
  const nlohmann::ordered_json& d = json["dispatchers"]["alltoall"];
  for (const char* key :
       {"step", "forward", "backward", "comm", "dispatch", "combine", "gmm", "permute", "host", "compute_only", "comm_only", "exposed_comm"}) {
    ASSERT_TRUE(d.contains(key)) << key;
    for (const char* part : {"median", "min", "max", "n"}) EXPECT_TRUE(d[key].contains(part)) << key;
  }
  for (const char* key : {"utilisation", "exposed_share", "eta", "tokens_per_s", "bytes_sent", "peak_bytes", "chunks", "fallback", "per_rank"}) {
    EXPECT_TRUE(d.contains(key)) << key;
  }
  EXPECT_TRUE(d["fallback"].is_null());
  EXPECT_EQ(d["per_rank"].size(), 2U);
  const nlohmann::ordered_json& compare = json["compare"][0];
  EXPECT_EQ(compare["a"], "eager");
  EXPECT_EQ(compare["bitwise_equal"], true);
  EXPECT_TRUE(compare["first_difference"].is_null());
  for (const char* key : {"y", "dx", "dw_gate_up", "dw_down", "dweights"}) EXPECT_TRUE(compare["max_abs_diff"].contains(key)) << key;
  EXPECT_EQ(json["loss"]["eager"].size(), 1U);
  EXPECT_TRUE(json["routing"].is_array());
  for (const char* key : {"tokens_per_expert", "max_over_mean", "empty_experts", "entropy"}) EXPECT_TRUE(json["routing"][0].contains(key)) << key;

  std::string table = format_table(report);
  for (const char* row :
       {"step (ms)", "forward", "backward", "dispatch", "combine", "grouped matmul", "permute and unpermute", "host", "exposed communication",
        "utilisation", "tokens/s", "sent per rank", "peak memory", "bitwise equal yes", "overlap eff.", "loss of step 1"}) {
    EXPECT_NE(table.find(row), std::string::npos) << row << "\n" << table;
  }
  std::string line;
  for (std::istringstream lines(table); std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
}

TEST(RunReport, RoutingIsAnObjectWithoutTrainingAndInfinityIsNull) {
  RunReport report;
  report.run_case = test::small_case();
  report.dispatchers.resize(1);
  report.routing = {routing_report({4, 0, 2, 2})};
  report.comparisons.resize(1);
  report.comparisons[0].diff_y = HUGE_VAL;
  nlohmann::ordered_json json = to_json(report);
  EXPECT_TRUE(json["routing"].is_object());
  EXPECT_TRUE(json["compare"][0]["max_abs_diff"]["y"].is_null());
  EXPECT_FALSE(json.contains("loss"));
}

TEST(RoutingReport, DistributionFigures) {
  RoutingReport report = routing_report({4, 0, 2, 2});
  EXPECT_DOUBLE_EQ(report.max_over_mean, 2);
  EXPECT_EQ(report.empty_experts, 1);
  EXPECT_NEAR(report.entropy, 0.5 * std::log(2.0) + 2 * 0.25 * std::log(4.0), 1e-12);
  RoutingReport empty = routing_report({0, 0});
  EXPECT_EQ(empty.max_over_mean, 0);
  EXPECT_EQ(empty.entropy, 0);
  EXPECT_EQ(empty.empty_experts, 2);
}

TEST(Timing, MedianMinimumMaximum) {
  Timing odd = timing({3, 1, 2}), even = timing({4, 1, 2, 3});
  EXPECT_EQ(odd.median, 2);
  EXPECT_EQ(even.median, 2.5);
  EXPECT_EQ(even.min, 1);
  EXPECT_EQ(even.max, 4);
  EXPECT_EQ(even.n, 4);
  EXPECT_EQ(timing({}).n, 0);
}

TEST(Figures, AreTheSlowestRanksOfEachRound) {
  StepSample a{.step = 10, .compute = 7}, b{.step = 12, .compute = 9}, c{.step = 11, .compute = 10}, d{.step = 8, .compute = 2};
  a.bytes_sent = 5;
  d.bytes_sent = 6;
  DispatcherReport report;
  collect_figures({a, b, c, d}, 2, {1, 3}, report);  // rank 0: a, b; rank 1: c, d
  EXPECT_EQ(report.step.min, 11);
  EXPECT_EQ(report.step.max, 12);
  EXPECT_EQ(report.compute_only.max, 10);
  EXPECT_EQ(report.exposed_comm.min, 1);  // 11 - 10 and 12 - 9
  EXPECT_EQ(report.exposed_comm.max, 3);
  EXPECT_EQ(report.comm_only.median, 2);
  EXPECT_EQ(report.bytes_sent, 6);
  EXPECT_EQ(report.step_per_rank[1].max, 11);
  EXPECT_EQ(report.bytes_sent_per_rank[0], 5);
}

TEST(Figures, NoiseDoesNotMakeNegativeCommunication) {
  StepSample slow{.step = 10, .compute = 11}, quick{.step = 12, .compute = 9};
  DispatcherReport report;
  collect_figures({slow, quick}, 2, {1, 1}, report);
  EXPECT_EQ(report.exposed_comm.min, 0);
  EXPECT_EQ(report.exposed_comm.max, 3);
}

TEST(Figures, ResidentMemoryIsThatOfTheFirstRound) {
  StepSample first{.step = 10, .compute = 7}, second = first;
  first.resident_bytes = 100;
  second.resident_bytes = 900;  // with the memory of records
  DispatcherReport report;
  collect_figures({first, second}, 2, {1, 1}, report);
  EXPECT_EQ(report.resident_bytes, 100);
}

TEST(StepFlops, CountsMatmuls) {
  Case c = test::small_case();
  c.layer.shared_intermediate = 10;
  double experts = 6.0 * 80 * 32 * 24, shared = 6.0 * 40 * 32 * 10, router = 2.0 * 40 * 32 * 8;
  EXPECT_DOUBLE_EQ(step_flops(c, 80), 3 * (experts + shared + router));
  c.backward = false;
  EXPECT_DOUBLE_EQ(step_flops(c, 80), experts + shared + router);
}

}  // namespace
}  // namespace plait
