#include "observe/verify.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

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

std::set<std::string> sections_of(const std::vector<CheckLine>& lines) {
  std::set<std::string> sections;
  for (const CheckLine& line : lines) sections.insert(line.section);
  return sections;
}

/// Turns an exponent bit of the first and the last weight over, of a rank's first and last expert: the values change a lot, and come back the
/// next time.
void flip(const train::ParameterSet& parameters, train::Stream id) {
  TensorView value = parameters.value(id);
  for (int64_t byte : {int64_t{1}, value.num_bytes() - 1}) value.data[byte] ^= std::byte{0x40};
}

void expect_all_hold(const VerifyReport& report) {
  EXPECT_TRUE(report.ok());
  for (const CheckLine& line : failed(report.lines)) ADD_FAILURE() << line.section << ": " << line.name << ": " << line.detail;
}

TEST(VerifyCase, AllSectionsHold) {
  VerifyReport report = test::verify_on_ranks(small_verify());
  expect_all_hold(report);
  for (const CheckLine& line : report.lines) EXPECT_EQ(line.reproducer, "");
  std::span<const std::string> names = verify_section_names();
  EXPECT_EQ(sections_of(report.lines), std::set<std::string>(names.begin(), names.end() - 1)) << "all but across-ranks";
}

TEST(VerifyCase, EveryDispatcherIsInEverySection) {
  VerifyReport report = test::verify_on_ranks(small_verify());
  for (const char* section : {"shape", "numeric", "backward", "routing", "precision", "performance", "fallback"}) {
    for (Dispatcher dispatcher : all_dispatchers()) {
      bool found = false;
      for (const CheckLine& line : report.lines) {
        found = found || (line.section == section && line.name.find(name(dispatcher)) != std::string::npos);
      }
      EXPECT_TRUE(found) << section << ": " << name(dispatcher);
    }
  }
  for (const CheckLine& line : report.lines) {
    EXPECT_TRUE(line.section != "numeric" || line.name.find("alltoall") != std::string::npos) << line.name << ": alltoall is the baseline";
    EXPECT_TRUE(line.section != "performance" || line.detail.find(" ms") != std::string::npos) << line.detail;
    EXPECT_TRUE(line.name != "eager: routing of step 3" || line.detail.find("entropy") != std::string::npos) << line.detail;
  }
}

TEST(VerifyCase, OnlyTheSectionsAskedFor) {
  VerifyOptions options = small_verify();
  options.sections = {"routing", "shape", "across-ranks"};
  EXPECT_EQ(sections_of(test::verify_on_ranks(options).lines), (std::set<std::string>{"shape", "routing"}));
  options.sections = {"across-ranks"};
  EXPECT_TRUE(test::verify_on_ranks(options).lines.empty());
  options.sections = {"shape", "shapes"};
  for (const Status& status : run_ranks(2, {}, [&](Group& group) { return verify_case(options, group).status(); })) {
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_NE(status.message().find("\"shapes\" is not known; known are shape"), std::string::npos) << status.to_string();
  }
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
    if (dispatcher == Dispatcher::eager) flip(parameters.set(), train::Stream::down);
  };
  options.before_training = [](Dispatcher dispatcher, const train::ParameterSet& parameters) {
    if (dispatcher == Dispatcher::eager) flip(parameters, train::Stream::down);
  };
  VerifyReport report = test::verify_on_ranks(options);
  EXPECT_FALSE(report.ok());
  std::vector<CheckLine> lines = failed(report.lines);
  ASSERT_FALSE(lines.empty());
  bool numeric = false, names_expert = false;
  for (const CheckLine& line : lines) {
    EXPECT_TRUE(line.reproducer.starts_with("plait verify ")) << line.reproducer;
    EXPECT_TRUE(line.reproducer.ends_with(" --sections " + line.section)) << line.reproducer;
    EXPECT_NE(line.reproducer.find("--hidden 32"), std::string::npos);
    EXPECT_NE(line.reproducer.find("--seed 5"), std::string::npos);
    numeric = numeric || line.section == "numeric";
    names_expert = names_expert || line.detail.find("expert 0: worst row") != std::string::npos;
  }
  EXPECT_TRUE(numeric);
  EXPECT_EQ(sections_of(lines), (std::set<std::string>{"shape", "numeric", "backward", "precision", "fallback"}));
  EXPECT_TRUE(names_expert) << format_lines(report);
  std::string text = format_lines(report);
  EXPECT_NE(text.find("FAILED"), std::string::npos);
  EXPECT_NE(text.find("plait verify"), std::string::npos);
  nlohmann::ordered_json json = to_json(report);
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["lines"].size(), report.lines.size());
}

/// Names of the lines that fail where a dispatcher runs with what `change` makes of its weights.
std::set<std::string> broken_lines(const std::string& section, const std::function<void(const train::ParameterSet&)>& change) {
  VerifyOptions options = small_verify();
  options.sections = {section};
  options.before_call = [&](Dispatcher dispatcher, int, const train::LayerParameters& parameters) {
    if (dispatcher == Dispatcher::eager) change(parameters.set());
  };
  options.before_training = [&](Dispatcher dispatcher, const train::ParameterSet& parameters) {
    if (dispatcher == Dispatcher::eager) change(parameters);
  };
  std::set<std::string> names;
  for (const CheckLine& line : failed(test::verify_on_ranks(options).lines)) names.insert(line.name);
  return names;
}

TEST(VerifyCase, LinesFailForWhatTheyWatch) {
  // Zero rows make the tie: any other router breaks it, and a training's routing tells that its router changed.
  auto other_router = [](const train::ParameterSet& parameters) {
    TensorView router = parameters.value(train::Stream::router);
    for (int64_t i = 1; i < router.num_bytes(); i += 2) router.data[i] = static_cast<std::byte>(0x3c + (i / 2 * 7 % 13 % 2) * 0x80);
  };
  auto nans_in_down = [](const train::ParameterSet& parameters) {
    TensorView down = parameters.value(train::Stream::down);
    std::memset(down.data, 0xff, static_cast<size_t>(down.num_bytes()));
  };
  EXPECT_TRUE(broken_lines("shape", nans_in_down).contains("eager: results"));
  EXPECT_TRUE(broken_lines("routing", other_router).contains("eager = alltoall: ids, weights, counts"));
  EXPECT_TRUE(broken_lines("backward", other_router).contains("eager: all scores tie"));
  EXPECT_TRUE(broken_lines("precision", other_router).contains("eager = alltoall: losses, norms, routing"));
  EXPECT_TRUE(broken_lines("precision", nans_in_down).contains("eager: 3 training steps finite"));
  EXPECT_TRUE(
      broken_lines("fallback", [](const train::ParameterSet& parameters) { flip(parameters, train::Stream::down); }).contains("dispatcher: eager"));
  EXPECT_TRUE(broken_lines("performance", nans_in_down).empty()) << "times never fail";
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
    EXPECT_EQ(lines->size(), 4 * all_dispatchers().size());
    for (const CheckLine& line : failed(*lines)) ADD_FAILURE() << line.name << ": " << line.detail;
  }
}

TEST(AcrossRanks, ADifferenceGivesALineWithAReproducer) {
  VerifyOptions options = small_verify();
  options.across_ranks = {1, 2};
  options.before_call = [](Dispatcher dispatcher, int num_ranks, const train::LayerParameters& parameters) {
    if (num_ranks == 2 && dispatcher == Dispatcher::eager) flip(parameters.set(), train::Stream::gate_up);
  };
  auto lines = verify_across_ranks(options);
  ASSERT_TRUE(lines.ok()) << lines.status().to_string();
  std::vector<CheckLine> bad = failed(*lines);
  ASSERT_EQ(bad.size(), 1U);
  EXPECT_EQ(bad[0].name, "eager on 2 = alltoall on 1");
  EXPECT_NE(bad[0].detail.find("; differing: "), std::string::npos) << bad[0].detail;
  EXPECT_NE(bad[0].detail.find(" dw_gate_up;"), std::string::npos) << bad[0].detail;
  EXPECT_NE(bad[0].reproducer.find("--sections across-ranks"), std::string::npos) << bad[0].reproducer;
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
