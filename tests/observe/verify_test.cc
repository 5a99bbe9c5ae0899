#include "observe/verify.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "run_support.h"
#include "train/parameters.h"

namespace plait {
namespace {

VerifyOptions small_verify(int ranks = 2, DType dtype = DType::bf16) {
  VerifyOptions options;
  options.run_case = test::small_case(ranks, dtype);
  return options;
}

std::vector<CheckLine> failed(const std::vector<CheckLine>& lines) {
  std::vector<CheckLine> result;
  for (const CheckLine& line : lines) {
    if (!line.ok) result.push_back(line);
  }
  return result;
}

void expect_all_hold(const VerifyReport& report) {
  EXPECT_TRUE(report.ok());
  for (const CheckLine& line : failed(report.lines)) ADD_FAILURE() << line.section << ": " << line.name << ": " << line.detail;
}

TEST(VerifyCase, AllSectionsHold) {
  VerifyReport report = test::verify_on_ranks(small_verify());
  expect_all_hold(report);
  std::set<std::string> sections;
  for (const CheckLine& line : report.lines) {
    sections.insert(line.section);
    EXPECT_EQ(line.reproducer, "");
  }
  EXPECT_EQ(sections, (std::set<std::string>{"shape", "numeric", "backward", "routing", "precision", "fallback"}));
}

TEST(VerifyCase, HoldsForEveryTypeAndConvention) {
  for (DType dtype : {DType::f32, DType::f16}) expect_all_hold(test::verify_on_ranks(small_verify(2, dtype)));
  VerifyOptions options = small_verify(1);
  options.run_case.layer.shared_intermediate = 16;
  options.run_case.layer.shared_gate = true;
  options.run_case.layer.router.score = ScoreFunction::sigmoid;
  options.run_case.skew = 1.5;
  expect_all_hold(test::verify_on_ranks(options));
  options = small_verify(4);
  options.run_case.layer.expert_bias = true;
  options.run_case.layer.router.score = ScoreFunction::topk_softmax;
  options.run_case.layer.router.norm_topk = false;
  options.run_case.layer.activation.kind = ActivationKind::swiglu_clamped;
  options.run_case.layer.activation.interleaved = true;
  expect_all_hold(test::verify_on_ranks(options));
  options = small_verify(2);
  options.run_case.layer.activation.kind = ActivationKind::relu2;
  options.run_case.layer.router.top_k = options.run_case.layer.router.num_experts;
  options.run_case.tokens = 3;
  expect_all_hold(test::verify_on_ranks(options));
}

TEST(VerifyCase, ABrokenDispatcherGivesLinesWithReproducers) {
  VerifyOptions options = small_verify();
  options.before_call = [](Dispatcher dispatcher, int, const train::LayerParameters& parameters) {
    if (dispatcher == Dispatcher::alltoall) parameters.set().value(train::Stream::down).data[1] ^= std::byte{0x40};
  };
  VerifyReport report = test::verify_on_ranks(options);
  EXPECT_FALSE(report.ok());
  std::vector<CheckLine> lines = failed(report.lines);
  ASSERT_FALSE(lines.empty());
  bool numeric = false, names_expert = false;
  for (const CheckLine& line : lines) {
    EXPECT_TRUE(line.reproducer.starts_with("plait verify ")) << line.reproducer;
    EXPECT_NE(line.reproducer.find("--hidden 32"), std::string::npos);
    EXPECT_NE(line.reproducer.find("--seed 5"), std::string::npos);
    numeric = numeric || line.section == "numeric";
    names_expert = names_expert || line.detail.find("expert 0: worst row") != std::string::npos;
  }
  EXPECT_TRUE(numeric);
  EXPECT_TRUE(names_expert) << format_lines(report);
  std::string text = format_lines(report);
  EXPECT_NE(text.find("FAILED"), std::string::npos);
  EXPECT_NE(text.find("plait verify"), std::string::npos);
  nlohmann::ordered_json json = to_json(report);
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["lines"].size(), report.lines.size());
}

TEST(VerifyCase, WrongWeightsOfTheBaselineFailAgainstFloat64) {
  VerifyOptions options = small_verify();
  options.before_call = [](Dispatcher, int, const train::LayerParameters& parameters) {
    TensorView down = parameters.set().value(train::Stream::down);  // every dispatcher alike: only the float64 evaluation can tell
    for (int64_t i = 1; i < down.num_bytes(); i += 2) down.data[i] = std::byte{0x40};
  };
  VerifyReport report = test::verify_on_ranks(options);
  bool found = false;
  for (const CheckLine& line : failed(report.lines)) found = found || line.name.find("float64: y") != std::string::npos;
  EXPECT_TRUE(found) << format_lines(report);
}

TEST(VerifyCase, InterruptionAndBadInputAreErrors) {
  VerifyOptions options = small_verify();
  options.interrupted = [] { return true; };
  for (const Status& status : run_ranks(2, {}, [&](Group& group) { return verify_case(options, group).status(); })) {
    EXPECT_EQ(status.code(), StatusCode::interrupted) << status.to_string();
  }
  for (const Status& status : run_ranks(1, {}, [&](Group& group) { return verify_case(options, group).status(); })) {
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << status.to_string();
  }
}

TEST(AcrossRanks, SameBitsOnAnyNumberOfRanks) {
  for (DType dtype : {DType::bf16, DType::f32}) {
    VerifyOptions options = small_verify(2, dtype);
    options.run_case.tokens = 19;  // 38 tokens: unequal shares on 4 and on 8 ranks
    options.run_case.layer.expert_bias = true;
    options.run_case.layer.shared_intermediate = 8;
    options.across_ranks = {1, 2, 4, 8};
    auto lines = verify_across_ranks(options);
    ASSERT_TRUE(lines.ok()) << lines.status().to_string();
    EXPECT_GT(lines->size(), 20U);
    for (const CheckLine& line : failed(*lines)) ADD_FAILURE() << line.name << ": " << line.detail;
  }
}

TEST(AcrossRanks, ADifferenceGivesALineWithAReproducer) {
  VerifyOptions options = small_verify();
  options.across_ranks = {1, 2};
  options.before_call = [](Dispatcher, int num_ranks, const train::LayerParameters& parameters) {
    if (num_ranks == 2) parameters.set().value(train::Stream::gate_up).data[1] ^= std::byte{0x40};
  };
  auto lines = verify_across_ranks(options);
  ASSERT_TRUE(lines.ok()) << lines.status().to_string();
  std::vector<CheckLine> bad = failed(*lines);
  ASSERT_FALSE(bad.empty());
  EXPECT_NE(bad[0].reproducer.find("--across-ranks 1,2"), std::string::npos) << bad[0].reproducer;
}

TEST(AcrossRanks, ImpossibleSizesAreErrors) {
  VerifyOptions options = small_verify();
  options.across_ranks = {1, 3};
  EXPECT_EQ(verify_across_ranks(options).status().code(), StatusCode::invalid_argument);
  options.across_ranks = {0};
  EXPECT_EQ(verify_across_ranks(options).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace plait
