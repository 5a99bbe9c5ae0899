// The rules of a Case, the table of its fields, and the shape presets.
#include "plait/config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "config/case_fields.h"
#include "config/nearest.h"

namespace plait {
namespace {

Case tiny() {
  Case c;
  EXPECT_TRUE(apply_preset("tiny", 1, c).ok());
  return c;
}

bool mentions(const Status& status, std::initializer_list<std::string_view> words) {
  return std::all_of(words.begin(), words.end(), [&](std::string_view word) { return status.message().find(word) != std::string::npos; });
}

TEST(CaseRules, ExpertsMustBeDivisibleByRanks) {
  for (auto [experts, ranks] : {std::pair<int64_t, int>{6, 4}, {2, 4}}) {
    Case c = tiny();
    c.layer.router.num_experts = experts;
    c.ranks = ranks;
    Status status = c.validate();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_TRUE(mentions(status, {"experts " + std::to_string(experts), "ranks 4", "divisible"})) << status.message();
  }
}

TEST(CaseRules, TopkAboveExperts) {
  Case c = tiny();
  c.layer.router.top_k = 9;
  EXPECT_TRUE(mentions(c.validate(), {"topk 9", "experts 8"})) << c.validate().message();
}

TEST(CaseRules, RanksAndSizesBelowTheirRange) {
  Case c = tiny();
  c.ranks = 0;
  c.tokens = -1;
  c.layer.hidden = 0;
  Status status = c.validate();
  EXPECT_TRUE(mentions(status, {"3 faults", "ranks: \"0\"", "tokens: \"-1\"", "hidden is not set"})) << status.message();
}

TEST(CaseRules, NoTokensAndOneRankAreLegal) {
  Case c = tiny();
  c.tokens = 0;
  c.ranks = 1;
  EXPECT_TRUE(c.validate().ok()) << c.validate().message();
}

TEST(CaseRules, FusedDispatcherNeedsFusedOperators) {
  Case c = tiny();
  c.dispatchers = {Dispatcher::mc2};
  c.fused_ops = false;
  EXPECT_TRUE(mentions(c.validate(), {"mc2", "use_npu_fused_ops is false: set it to true"})) << c.validate().message();
}

TEST(CaseRules, DispatchersAreNamedOnce) {
  Case c = tiny();
  c.dispatchers = {Dispatcher::eager, Dispatcher::eager};
  EXPECT_TRUE(mentions(c.validate(), {"eager is named twice"}));
  c.dispatchers = {};
  EXPECT_TRUE(mentions(c.validate(), {"dispatcher is empty"}));
  for (Dispatcher d : all_dispatchers()) {
    c.dispatchers = {d};
    EXPECT_TRUE(c.validate().ok()) << name(d);
  }
}

TEST(CaseRules, GroupLimitsOfTheRouterAreChecked) {
  Case c = tiny();
  c.layer.router.n_group = 3;
  EXPECT_FALSE(c.validate().ok());
}

TEST(CaseFields, NamesAreUniqueAndTextsReadBack) {
  std::set<std::string_view> seen;
  Case c = tiny();
  c.input = "some file.txt";
  c.apply_modules = {"a.{0,1}", "b"};
  for (const CaseField& field : case_fields()) {
    EXPECT_TRUE(seen.insert(field.name).second) << field.name;
    FieldValue value = field.get(c);
    std::string text = to_text(value);
    if (field.name == "apply_modules") text = "a.{0,1}\nb";
    Case copy = tiny();
    EXPECT_TRUE(set_field(field, text, copy).ok()) << field.name;
    EXPECT_EQ(to_text(field.get(copy)), to_text(value)) << field.name;
    EXPECT_EQ(field.allowed.empty(), field.choices != nullptr && !field.is_flag()) << field.name << " needs a text or a list of what is allowed";
    EXPECT_FALSE(field.help.empty());
    EXPECT_EQ(find_case_field(option_name(field.name).substr(2)), &field);
  }
}

TEST(CaseFields, CommandLineOptionsNameOnlyWhatDiffers) {
  Case c = tiny();
  EXPECT_EQ(command_line_options(c), "--model tiny");
  c.ranks = 2;
  c.backward = false;
  c.layer.router.aux_loss = 0.001F;
  c.dispatchers = {Dispatcher::alltoall};
  c.input = "my text.txt";
  EXPECT_EQ(command_line_options(c), "--model tiny --ranks 2 --input 'my text.txt' --no-backward --dispatcher alltoall --aux-loss 0.001");
}

TEST(Presets, AreValidForTheirUsualGroups) {
  for (const std::string& name : preset_names()) {
    Case c;
    ASSERT_TRUE(apply_preset(name, 1, c).ok());
    EXPECT_TRUE(c.validate().ok()) << name << ": " << c.validate().message();
    EXPECT_EQ(c.model, name);
  }
}

TEST(Presets, ShapesAndConventions) {
  Case c;
  ASSERT_TRUE(apply_preset("qwen3_5_moe_397b", 1, c).ok());
  EXPECT_EQ(c.layer.hidden, 4096);
  EXPECT_EQ(c.layer.intermediate, 1024);
  EXPECT_EQ(c.layer.router.num_experts, 512);
  EXPECT_EQ(c.layer.router.top_k, 10);
  EXPECT_EQ(c.layer.shared_intermediate, 1024);
  EXPECT_TRUE(c.layer.shared_gate);
  EXPECT_TRUE(c.layer.router.norm_topk);
  ASSERT_TRUE(apply_preset("deepseek_v3", 1, c).ok());
  EXPECT_EQ(c.layer.router.score, ScoreFunction::sigmoid);
  EXPECT_EQ(c.layer.router.n_group, 8);
  EXPECT_EQ(c.layer.router.topk_group, 4);
  EXPECT_EQ(c.layer.router.scaling, 2.5F);
  EXPECT_EQ(c.layer.shared_intermediate, 2048);
  EXPECT_FALSE(c.layer.shared_gate) << "nothing of the preset before may stay";
  ASSERT_TRUE(apply_preset("gpt_oss_120b", 1, c).ok());
  EXPECT_EQ(c.layer.router.score, ScoreFunction::topk_softmax);
  EXPECT_EQ(c.layer.activation.kind, ActivationKind::swiglu_clamped);
  EXPECT_TRUE(c.layer.activation.interleaved);
  EXPECT_TRUE(c.layer.expert_bias);
  EXPECT_EQ(c.layer.router.n_group, 1);
}

TEST(Presets, DocumentationShowsTheirShapes) {
  std::ifstream in(std::string(PLAIT_SOURCE_DIR) + "/docs/configuration.md");
  std::string page((std::istreambuf_iterator<char>(in)), {});
  for (const std::string& name : preset_names()) {
    Case c;
    ASSERT_TRUE(apply_preset(name, 1, c).ok());
    const RouterConfig& router = c.layer.router;
    std::string row = fmt::format("| `{}` | {} | {} | {} | {} |", name, c.layer.hidden, c.layer.intermediate, router.num_experts, router.top_k);
    EXPECT_NE(page.find(row), std::string::npos) << row;
  }
}

TEST(Presets, ScaleShrinksHiddenAndIntermediateOnly) {
  Case c;
  c.ranks = 2;
  c.layer.dtype = DType::f32;
  ASSERT_TRUE(apply_preset("qwen3_5_moe_397b", 1.0 / 8, c).ok());
  EXPECT_EQ(c.layer.hidden, 512);
  EXPECT_EQ(c.layer.intermediate, 128);
  EXPECT_EQ(c.layer.shared_intermediate, 128);
  EXPECT_EQ(c.layer.router.num_experts, 512);
  EXPECT_EQ(c.ranks, 2);
  EXPECT_EQ(c.layer.dtype, DType::f32);
  ASSERT_TRUE(apply_preset("mixtral_8x7b", 1e-9, c).ok());
  EXPECT_EQ(c.layer.hidden, 1);
  EXPECT_EQ(c.layer.intermediate, 1);
  EXPECT_EQ(c.layer.shared_intermediate, 0);
}

TEST(Presets, UnknownNamesAndScalesAreErrors) {
  Case c = tiny();
  EXPECT_TRUE(mentions(apply_preset("tinny", 1, c), {"tinny", "did you mean \"tiny\"", "mixtral_8x7b"}));
  for (double scale : {0.0, -1.0, 1.5, std::numeric_limits<double>::quiet_NaN()}) EXPECT_FALSE(apply_preset("tiny", scale, c).ok()) << scale;
  EXPECT_EQ(c.layer.hidden, tiny().layer.hidden);
}

TEST(NearestName, FindsSlipsAndNothingElse) {
  std::vector<std::string> names = {"dispatcher", "tokens", "topk", "experts"};
  EXPECT_EQ(nearest_name("dispacher", names), "dispatcher");
  EXPECT_EQ(nearest_name("tpok", names), "topk");
  EXPECT_EQ(nearest_name("zzz", names), "");
  EXPECT_EQ(nearest_name("", names), "");
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("ab", "ba"), 1);
}

}  // namespace
}  // namespace plait
