#include "observe/bench_gmm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/arena.h"
#include "observe/bench_gmm_case.h"
#include "observe/probe.h"

namespace plait {
namespace {

std::unique_ptr<Context> context_of(int threads, const std::string& kernel = "") {
  Result<std::unique_ptr<Context>> context = Context::create({.threads = threads, .kernel = kernel});
  EXPECT_TRUE(context.ok()) << context.status().to_string();
  return context.take();
}

constexpr GmmCase small{
    .hidden = 24, .intermediate = 9, .rows_per_expert = 5, .num_experts = 4, .dtype = DType::bf16, .transposed_weights = false, .skew = 0};

TEST(BenchGmmCases, DefaultGridStaysWithinItsBudget) {
  std::vector<GmmCase> cases = default_gmm_cases();
  EXPECT_EQ(cases.size(), 36U);
  for (const GmmCase& c : cases) {
    EXPECT_LE(c.num_experts * c.hidden * 2 * c.intermediate * size_of(c.dtype), 64 << 20) << describe(c);
    EXPECT_LE(c.num_experts * c.rows_per_expert, 4096) << describe(c);
    EXPECT_GE(c.num_experts, 1);
  }
}

TEST(BenchGmmCases, RowsPerExpert) {
  GmmCase c = small;
  EXPECT_EQ(gmm_case_rows(c), (std::vector<int64_t>{5, 5, 5, 5}));
  c.num_experts = 16;
  c.skew = 1;
  std::vector<int64_t> rows = gmm_case_rows(c);
  EXPECT_EQ(std::accumulate(rows.begin(), rows.end(), int64_t{0}), 80);
  std::vector<int64_t> sorted = rows;
  std::sort(sorted.rbegin(), sorted.rend());
  EXPECT_NE(rows, sorted);            // shuffled
  EXPECT_GE(sorted[0], 80 / 4);       // 1 / H(16) = 0.296 of all
  EXPECT_EQ(rows, gmm_case_rows(c));  // the same every time
}

TEST(BenchGmm, ChecksAndTimesEveryOperator) {
  BenchGmmOptions options;
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (bool transposed : {false, true}) {
      for (double skew : {0.0, 1.0}) {
        options.cases.push_back(small);
        options.cases.back().dtype = dtype;
        options.cases.back().transposed_weights = transposed;
        options.cases.back().skew = skew;
      }
    }
  }
  options.cases.push_back(small);
  options.cases.back().rows_per_expert = 0;
  options.cases.push_back(
      {.hidden = 300, .intermediate = 130, .rows_per_expert = 40, .num_experts = 5, .dtype = DType::f32, .transposed_weights = false, .skew = 0});
  options.seconds_per_case = 0.001;
  std::vector<double> shares;
  options.progress = [&](double done, std::string_view) { shares.push_back(done); };
  Result<BenchGmmReport> report = bench_gmm(*context_of(2), options);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  ASSERT_EQ(report->timings.size(), 3 * options.cases.size());
  EXPECT_EQ(report->threads, 2);
  EXPECT_FALSE(report->interrupted);
  EXPECT_EQ(shares.size(), options.cases.size() + 1);
  EXPECT_EQ(shares.back(), 1);
  for (const GmmTiming& t : report->timings) {
    EXPECT_GE(t.rounds, 3);
    EXPECT_GT(t.best_ms, 0);
    EXPECT_LE(t.best_ms, t.median_ms);
    double flops = 2.0 * static_cast<double>(t.shape.rows_per_expert * t.shape.num_experts * t.shape.hidden * 2 * t.shape.intermediate);
    EXPECT_NEAR(t.gflops, flops / t.best_ms / 1e6, 1e-9 * t.gflops);
    EXPECT_DOUBLE_EQ(t.share_of_bound, std::max(t.share_of_peak, t.share_of_bandwidth));
  }
}

TEST(BenchGmm, CountsBytesThatMustMove) {
  auto context = context_of(1);
  GmmCase c = small;
  c.num_experts = 2;
  Result<BenchGmmCase> operands = BenchGmmCase::create(*context, c);
  ASSERT_TRUE(operands.ok());
  EXPECT_EQ(operands->flops(), 2 * 10 * 24 * 18);
  for (size_t op = 0; op < 3; ++op) EXPECT_EQ(operands->bytes(op), 2 * (10 * 24 + 10 * 18 + 2 * 24 * 18));
}

TEST(BenchGmm, FindsAWrongElement) {
  auto context = context_of(2);
  auto reference = context_of(1, "reference");
  GmmCase large{
      .hidden = 700, .intermediate = 300, .rows_per_expert = 20, .num_experts = 7, .dtype = DType::f32, .transposed_weights = true, .skew = 1};
  for (const GmmCase& shape : {small, large}) {
    Result<BenchGmmCase> operands = BenchGmmCase::create(*context, shape);
    ASSERT_TRUE(operands.ok());
    for (size_t op = 0; op < 3; ++op) {
      ASSERT_TRUE(operands->run(*context, op).ok());
      EXPECT_TRUE(operands->check(*reference, op).ok());
      TensorView result = operands->result(op);
      for (std::byte* element : {result.data, result.data + result.num_bytes() - size_of(result.dtype)}) {  // the first and the last one
        *element ^= std::byte{1};
        Status status = operands->check(*reference, op);
        EXPECT_EQ(status.code(), StatusCode::internal);
        EXPECT_NE(status.message().find(BenchGmmCase::ops[op]), std::string::npos) << status.message();
        *element ^= std::byte{1};
      }
      EXPECT_TRUE(operands->check(*reference, op).ok());
    }
  }
}

TEST(BenchGmm, KeepsWhatIsDoneWhenInterrupted) {
  BenchGmmOptions options{.cases = {small, small, small}, .seconds_per_case = 0.001, .progress = {}, .interrupted = {}};
  int started = 0;
  options.progress = [&](double, std::string_view) { ++started; };
  options.interrupted = [&] { return started == 2; };
  Result<BenchGmmReport> report = bench_gmm(*context_of(1), options);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->interrupted);
  EXPECT_EQ(report->timings.size(), 3U);
  EXPECT_NE(format_table(*report).find("Interrupted"), std::string::npos);
}

TEST(BenchGmm, RefusesImpossibleCases) {
  BenchGmmOptions options;
  options.cases = {small};
  options.cases[0].hidden = 0;
  EXPECT_EQ(bench_gmm(*context_of(1), options).status().code(), StatusCode::invalid_argument);
  options.cases = {small};
  options.cases[0].dtype = DType::i32;
  EXPECT_NE(bench_gmm(*context_of(1), options).status().message().find("i32"), std::string::npos);
}

TEST(BenchGmm, TableAndJson) {
  BenchGmmReport report{.cpu = "a CPU", .tier = "avx2", .threads = 3, .probe = {.f32_gflops = 100, .bf16_gflops = 200, .read_gbps = 30}};
  GmmTiming timing{
      .shape = small, .op = "dx", .best_ms = 1.5, .median_ms = 2, .gflops = 50, .share_of_peak = 0.25, .gbps = 15, .share_of_bandwidth = 0.5};
  timing.share_of_bound = 0.5;
  timing.rounds = 7;
  report.timings = {timing};
  std::string table = format_table(report);
  for (const char* part : {"a CPU", "avx2", "3 threads", "200.0", "dx", "1.500", "25.0", "50.0"})
    EXPECT_NE(table.find(part), std::string::npos) << table;
  nlohmann::ordered_json json = to_json(report);
  EXPECT_EQ(json["probe"]["bf16_gflops"], 200);
  EXPECT_EQ(json["timings"][0]["ms"]["min"], 1.5);
  EXPECT_EQ(json["timings"][0]["ms"]["n"], 7);
  EXPECT_EQ(json["timings"][0]["dtype"], "bf16");
  EXPECT_EQ(json["timings"][0]["share_of_bound"], 0.5);
  EXPECT_EQ(json["interrupted"], false);
}

TEST(MachineProbe, EveryUsableTierReachesSomething) {
  for (const TierState& state : tier_states()) {
    if (!state.usable) continue;
    auto context = context_of(2, std::string(name(state.tier)));
    Result<MachineProbe> probe = MachineProbe::create(*context);
    ASSERT_TRUE(probe.ok()) << probe.status().to_string();
    probe->burst_flops(DType::f32);
    probe->burst_flops(DType::bf16);
    probe->burst_read();
    EXPECT_GT(probe->best().f32_gflops, 0.001) << name(state.tier);
    EXPECT_GT(probe->best().bf16_gflops, 0.001) << name(state.tier);
    EXPECT_GT(probe->best().read_gbps, 0.001) << name(state.tier);
    EXPECT_LT(probe->best().f32_gflops, 1e6) << name(state.tier);  // a loop that the compiler removed would seem infinitely fast
    EXPECT_EQ(context->arena().bytes_in_use(), 0);
  }
}

}  // namespace
}  // namespace plait
