// Every kind of fault a settings file can have, each with its line, and all of them in one message.
#include <gtest/gtest.h>
#include <unistd.h>

#include "config/config_files.h"
#include "config/nearest.h"

namespace plait {
namespace {

using Lines = std::vector<std::string>;
class YamlFaults : public test::ConfigFiles {};

TEST_F(YamlFaults, MisspeltKeyNamesTheNearest) {
  EXPECT_EQ(faults_of("parallel:\n  ep_plan:\n    dispacher: alltoall\n"),
            Lines{"x.yaml:3: \"dispacher\" is not a key of parallel.ep_plan; did you mean \"dispatcher\"?"});
  EXPECT_EQ(faults_of("case:\n  model: tiny\n  toknes: 4\n"), Lines{"x.yaml:3: \"toknes\" is not a key of case; did you mean \"tokens\"?"});
  EXPECT_EQ(faults_of("parallel:\n  expert_paralel_size: 4\n"),
            Lines{"x.yaml:2: \"expert_paralel_size\" is not a key of parallel; did you mean \"expert_parallel_size\"?"});
}

TEST_F(YamlFaults, MisspeltSectionNamesTheNearest) {
  EXPECT_EQ(faults_of("parralel:\n  expert_parallel_size: 4\n"), Lines{"x.yaml:1: section \"parralel\" is unknown; did you mean \"parallel\"?"});
}

TEST_F(YamlFaults, UnknownKeyInAStrictSectionListsWhatIsAllowed) {
  EXPECT_EQ(faults_of("parallel:\n  ep_plan:\n    overlap: 3\n"),
            Lines{"x.yaml:3: \"overlap\" is not a key of parallel.ep_plan. Allowed: apply_modules, dispatcher or use_npu_fused_ops."});
}

TEST_F(YamlFaults, WrongTypesAndValues) {
  EXPECT_EQ(faults_of("parallel:\n  expert_parallel_size: \"four\"\n"),
            Lines{"x.yaml:2: expert_parallel_size: \"four\" is not allowed. Allowed: a whole number from 1 to 1024."});
  EXPECT_EQ(faults_of("parallel:\n  ep_plan:\n    use_npu_fused_ops: flase\n"),
            Lines{"x.yaml:3: use_npu_fused_ops: \"flase\" is not allowed; did you mean \"false\"? Allowed: true or false."});
  EXPECT_EQ(faults_of("case:\n  model: tiny\n  tokens: [1, 2]\n"), Lines{"x.yaml:3: tokens is a list. Allowed: a whole number of at least 0."});
  EXPECT_EQ(faults_of("case:\n  model: tiny\n  ranks: {a: 1}\n"), Lines{"x.yaml:3: ranks is a mapping. Allowed: a whole number from 1 to 1024."});
  EXPECT_EQ(faults_of("case:\n  model: tiny\n  dtype:\n"), Lines{"x.yaml:3: dtype is empty. Allowed: bf16, f16 or f32."});
  EXPECT_EQ(faults_of("case:\n  model: tiny\n  dispatcher: [eager, [mc2]]\n"),
            Lines{"x.yaml:3: dispatcher holds an item that is a list; its items are names"});
  EXPECT_EQ(faults_of("case: 3\nparallel: []\n").size(), 2U);
}

TEST_F(YamlFaults, ValuesAreReadWhole) {
  for (const char* value : {"4x", "4.0", "0x4", "+ 4", "1e2", "-1", "0", "99999999999999999999"}) {
    EXPECT_EQ(faults_of(std::string("case:\n  model: tiny\n  ranks: ") + value + "\n").size(), 1U) << value;
  }
  for (const char* value : {"0", "2", "1/0", "nan", "inf", "-1/2", "a/b", "1/8/2"}) {
    EXPECT_EQ(faults_of(std::string("case:\n  model: tiny\n  scale: ") + value + "\n").size(), 1U) << value;
  }
}

TEST_F(YamlFaults, UnknownNamesGetTheNearestAndTheList) {
  std::vector<std::string> available;
  for (Dispatcher dispatcher : all_dispatchers()) available.emplace_back(name(dispatcher));
  std::string dispatchers = join_choices(available);
  EXPECT_EQ(faults_of("case:\n  model: tiny\n  dispatcher: eager,altoall\n"),
            Lines{"x.yaml:3: dispatcher: \"eager,altoall\" is not allowed; did you mean \"alltoall\"? Allowed: " + dispatchers + "."});
  EXPECT_EQ(faults_of("case:\n  model: mixtral_8x7\n"),
            Lines{"x.yaml:2: model: \"mixtral_8x7\" is not allowed; did you mean \"mixtral_8x7b\"? Allowed: qwen3_5_moe_397b, qwen3_30b_a3b, "
                  "mixtral_8x7b, deepseek_v3, gpt_oss_120b or tiny."});
  EXPECT_EQ(faults_of("model:\n  model_id: qwen3_5_mo\n"),
            Lines{"x.yaml:2: model_id: \"qwen3_5_mo\" has no shape here; did you mean \"qwen3_5_moe\"?"});
}

TEST_F(YamlFaults, KeyGivenTwice) {
  EXPECT_EQ(faults_of("parallel:\n  ep_plan:\n    dispatcher: eager\n    use_npu_fused_ops: true\n    dispatcher: alltoall\n"),
            Lines{"x.yaml:5: \"dispatcher\" is given twice; the first time on line 3"});
  EXPECT_EQ(faults_of("case:\n  model: tiny\ncase:\n  tokens: 3\n"), Lines{"x.yaml:3: \"case\" is given twice; the first time on line 1"});
}

TEST_F(YamlFaults, KeyInTheWrongSection) {
  EXPECT_EQ(faults_of("parallel:\n  dispatcher: eager\n"),
            Lines{"x.yaml:2: \"dispatcher\" is not a key of parallel; it belongs under parallel.ep_plan"});
  EXPECT_EQ(faults_of("parallel:\n  ep_plan:\n    use_grouped_expert_matmul: true\n"),
            Lines{"x.yaml:3: \"use_grouped_expert_matmul\" is not a key of parallel.ep_plan; it belongs under model"});
  EXPECT_EQ(faults_of("case:\n  model: tiny\n  expert_parallel_size: 2\n"),
            Lines{"x.yaml:3: \"expert_parallel_size\" is not a key of case; it belongs under parallel"});
  EXPECT_EQ(faults_of("tokens: 5\n"), Lines{"x.yaml:1: \"tokens\" stands outside its section; it belongs under case"});
  EXPECT_EQ(faults_of("training:\n  lr: 1\n  use_npu_fused_ops: true\n"),
            Lines{"x.yaml:3: \"use_npu_fused_ops\" stands in section training; it belongs under parallel.ep_plan"});
}

TEST_F(YamlFaults, TabsAreNamedByLineAndTheRestIsStillChecked) {
  EXPECT_EQ(faults_of("case:\n\tmodel: tiny\n\ttoknes: 3\n"),
            (Lines{"x.yaml:2: is indented with a tab; YAML allows only spaces", "x.yaml:3: is indented with a tab; YAML allows only spaces",
                   "x.yaml:3: \"toknes\" is not a key of case; did you mean \"tokens\"?"}));
}

TEST_F(YamlFaults, BrokenYamlNamesTheLine) {
  Lines faults = faults_of("case:\n  ranks: [1, 2\n");
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_EQ(faults[0].rfind("x.yaml:3: is not YAML: ", 0), 0U) << faults[0];
}

TEST_F(YamlFaults, EmptyFilesAndFilesWithoutSections) {
  for (const char* text : {"", "\n\n", "# only a comment\n", "---\n"}) {
    EXPECT_EQ(faults_of(text), Lines{"x.yaml: is empty; it needs a section: case, parallel or model"}) << text;
  }
  EXPECT_EQ(faults_of("- case\n"), Lines{"x.yaml:1: must be a mapping with the sections case, parallel or model"});
}

TEST_F(YamlFaults, FilesThatCannotBeRead) {
  EXPECT_EQ(lines_of(load_case(folder_ + "/none.yaml", nullptr).status().message()), Lines{"none.yaml: cannot be read: No such file or directory"});
  EXPECT_EQ(lines_of(load_case(folder_ + "/", nullptr).status().message()).size(), 1U);
  std::string locked = write("locked.yaml", "case:\n  model: tiny\n");
  std::filesystem::permissions(locked, std::filesystem::perms::none);
  constexpr uid_t nobody = 65534;
  bool is_root = ::geteuid() == 0;  // who may read every file
  if (is_root && ::seteuid(nobody) != 0) GTEST_SKIP() << "root cannot become another user here";
  Result<Case> refused = load_case(locked, nullptr);
  if (is_root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  EXPECT_EQ(lines_of(refused.status().message()), Lines{"locked.yaml: cannot be read: Permission denied"});
}

TEST_F(YamlFaults, FileWithoutEndIsRefused) { EXPECT_EQ(load_case("/dev/zero", nullptr).status().code(), StatusCode::invalid_argument); }

TEST_F(YamlFaults, BinaryContentIsRefused) { EXPECT_FALSE(faults_of(std::string("\x7f\x45\x4c\x46\x00\x01\xff\xfe: x", 12)).empty()); }

TEST_F(YamlFaults, AllAtOnce) {
  EXPECT_EQ(faults_of("parallel:\n"
                      "  expert_parallel_size: \"four\"\n"
                      "  ep_plan:\n"
                      "    dispacher: mc2\n"
                      "    use_npu_fused_ops: flase\n"
                      "    dispatcher: eager\n"
                      "    dispatcher: alltoall\n"
                      "    use_grouped_expert_matmul: true\n"
                      "case:\n"
                      "  topk: 0\n")
                .size(),
            6U);
}

TEST_F(YamlFaults, RulesBetweenValuesSayWhereTheValuesCameFrom) {
  EXPECT_EQ(
      faults_of("parallel:\n  expert_parallel_size: 3\ncase:\n  model: tiny\n"),
      Lines{"experts 8 is not divisible by ranks 3: every rank holds experts / ranks experts. Use 9 experts, or other ranks. (ranks: x.yaml:2)"});
  EXPECT_EQ(faults_of("case:\n  model: tiny\n  topk: 9\n"),
            Lines{"topk 9 is more than experts 8: a token chooses each expert at most once (topk: x.yaml:3)"});
}

TEST_F(YamlFaults, InputMustBeAFileWithContent) {
  EXPECT_EQ(faults_of("case:\n  model: tiny\n  input: none.txt\n"), Lines{"x.yaml:3: input none.txt cannot be read: No such file or directory"});
  write("empty.txt", "");
  EXPECT_EQ(faults_of("case:\n  model: tiny\n  input: empty.txt\n"), Lines{"x.yaml:3: input empty.txt is empty: it holds no tokens"});
  EXPECT_EQ(faults_of("case:\n  model: tiny\n  input: /\n"), Lines{"x.yaml:3: input / is a directory; name a file"});
}

}  // namespace
}  // namespace plait
