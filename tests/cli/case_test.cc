// Cases from the command line and from files: what is refused before anything starts, and what runs.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/process.h"

namespace plait {
namespace {

using nlohmann::json;
using test::run_plait;
using test::RunResult;

// A layer that takes no time.
std::vector<std::string> small(std::vector<std::string> more, const std::string& command = "run") {
  std::vector<std::string> arguments = {command, "--model", "tiny", "--tokens", "8"};
  if (command == "run") arguments.insert(arguments.end(), {"--rounds", "1"});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

void expect_refused(const std::vector<std::string>& arguments, std::initializer_list<const char*> parts) {
  RunResult result = run_plait(arguments);
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_EQ(result.out, "");
  for (const char* part : parts) EXPECT_NE(result.err.find(part), std::string::npos) << part << " in: " << result.err;
}

TEST(BadInput, ImpossibleShapes) {
  expect_refused(small({"--experts", "6", "--ranks", "4"}), {"experts 6", "ranks 4", "divisible"});
  expect_refused(small({"--experts", "2", "--ranks", "4"}), {"experts 2", "ranks 4", "divisible"});
  expect_refused(small({"--topk", "9", "--experts", "8"}), {"topk 9", "experts 8"});
  expect_refused(small({"--topk", "5", "--experts", "4"}), {"topk 5", "experts 4"});
  EXPECT_EQ(run_plait(small({"--ranks", "1", "--experts", "1"})).exit_code, 0);  // a preset's topk follows
  expect_refused(small({"--ranks", "0"}), {"\"0\"", "from 1 to 1024"});
  expect_refused(small({"--engine", "smh"}), {"did you mean \"shm\""});
  expect_refused(small({"--engine", "ucx"}), {"ucx is not in this build"});
  expect_refused(small({"--dispatcher", "alltoal"}), {"did you mean \"alltoall\""});
  expect_refused(small({"--input", "no such file"}), {"no such file", "cannot be read"});
  expect_refused({"verify", "--model", "tiny", "--ranks", "2", "--across-ranks", "1,3"}, {"experts 8", "3 ranks"});
  expect_refused({"verify", "--model", "tiny", "--ranks", "2", "--across-ranks", "1,x"}, {"\"x\""});
  expect_refused({"verify", "--model", "tiny", "--ranks", "2", "--sections", "shape,numerc"},
                 {"\"numerc\"", "did you mean \"numeric\"", "across-ranks"});
  expect_refused({"verify", "--model", "tiny", "--ranks", "2", "--sections", "across-ranks"}, {"needs --across-ranks"});
  expect_refused({"bench", "gmm", "--seconds", "soon"}, {"\"soon\""});
  RunResult threads_alone = run_plait({"bench", "gmm", "--threads", "many"});  // no shape is asked for: the grid has its own
  EXPECT_EQ(threads_alone.exit_code, 2);
  EXPECT_NE(threads_alone.err.find("many"), std::string::npos);
  EXPECT_EQ(threads_alone.err.find("hidden"), std::string::npos) << threads_alone.err;
}

TEST(BadInput, FusedDispatcherWithoutFusedOperators) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "c.yaml") << "parallel:\n  ep_plan:\n    dispatcher: mc2\n    use_npu_fused_ops: false\ncase:\n  model: tiny\n";
  expect_refused({"run", "--config", folder / "c.yaml"}, {"mc2", "use_npu_fused_ops is false: set it to true", "c.yaml:3", "c.yaml:4"});
}

TEST(BadInput, AllFaultsOfAFileAtOnce) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "c.yaml") << "parallel:\n  expert_parallel_size: \"four\"\n  ep_plan:\n    dispacher: mc2\n    use_npu_fused_ops: flase\n";
  expect_refused({"run", "--config", folder / "c.yaml"},
                 {"3 faults", "c.yaml:2", "c.yaml:4", "c.yaml:5", "did you mean \"dispatcher\"", "Allowed: true or false"});
  expect_refused({"run", "--config", folder / "none.yaml"}, {"none.yaml: cannot be read"});
}

TEST(BadInput, PlacesThatCannotBeWritten) {
  test::TemporaryFolder folder;
  expect_refused(small({"--json", folder / "no/such/folder.json"}), {"cannot be written"});
  expect_refused(small({"--json", folder.path()}), {"cannot be written"});
  EXPECT_TRUE(folder.names().empty());
}

TEST(BadInput, EnvironmentIsChecked) {
  RunResult result = run_plait(small({}), {.environment = {{"PLAIT_KERNEL", "no_such_tier"}}, .folder = ""});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("no_such_tier"), std::string::npos) << result.err;
#if defined(__x86_64__)
  const char* absent = "neon";
#else
  const char* absent = "avx2";
#endif
  result = run_plait(small({}), {.environment = {{"PLAIT_KERNEL", absent}}, .folder = ""});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find(absent), std::string::npos) << result.err;
  result = run_plait(small({}), {.environment = {{"PLAIT_TIMEOUT", "soon"}}, .folder = ""});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("PLAIT_TIMEOUT"), std::string::npos) << result.err;
}

TEST(Run, BothEnginesShowATableAndWriteTheSameKeys) {
  test::TemporaryFolder folder;
  std::vector<std::string> keys[2];
  int i = 0;
  for (const char* engine : {"shm", "threads"}) {
    std::string path = folder / (std::string(engine) + ".json");
    RunResult result = run_plait(small({"--ranks", "2", "--engine", engine, "--json", path}));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "") << "no progress in a pipe";
    EXPECT_NE(result.out.find("alltoall"), std::string::npos);
    EXPECT_EQ(result.out.find('\x1b'), std::string::npos);
    json report = json::parse(test::read_file(path));
    EXPECT_EQ(report["case"]["ranks"], 2);
    EXPECT_EQ(report["case"]["engine"], engine);
    EXPECT_EQ(report["case"]["hidden"], 64);
    for (const auto& item : report.items()) keys[i].push_back(item.key());
    EXPECT_EQ(report["compare"][0]["bitwise_equal"], true);
    ++i;
  }
  EXPECT_EQ(keys[0], keys[1]);
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"shm.json", "threads.json"}));
}

TEST(Run, OneRankAndNoTokens) {
  for (const char* engine : {"shm", "threads"}) {
    RunResult result = run_plait(small({"--ranks", "1", "--engine", engine}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    result = run_plait({"run", "--model", "tiny", "--rounds", "1", "--ranks", "2", "--tokens", "0", "--engine", engine});
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
}

TEST(Run, JsonToStdoutReplacesTheTable) {
  RunResult result = run_plait(small({"--ranks", "2", "--json", "-"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["case"]["tokens"], 8);
}

TEST(Run, FileThenModelThenOptions) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "words.txt") << std::string(4096, 'a') << "some words";
  std::ofstream(folder / "c.yaml") << "trainer:\n  lr: 1\ncase:\n  model: tiny\n  ranks: 2\n  tokens: 16\n  input: words.txt\n";
  RunResult result = run_plait({"run", "--config", folder / "c.yaml", "--tokens", "4", "--rounds", "1", "--json", folder / "r.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("c.yaml:1: trainer"), std::string::npos) << result.err;
  json report = json::parse(test::read_file(folder / "r.json"));
  EXPECT_EQ(report["case"]["tokens"], 4);
  EXPECT_EQ(report["case"]["ranks"], 2);
  EXPECT_EQ(report["case"]["input"], folder / "words.txt");
  result = run_plait({"run", "--config", folder / "c.yaml", "--tokens", "4", "--rounds", "1", "--quiet"});
  EXPECT_EQ(result.err, "");
}

TEST(Run, ReducedCombineIsNamedAndNoFailure) {
  RunResult result = run_plait(small({"--ranks", "2", "--experts", "6", "--topk", "5", "--dtype", "f32", "--dispatcher", "alltoall,allgather",
                                      "--combine", "reduced", "--json", "-"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  json report = json::parse(result.out);
  EXPECT_EQ(report["compare"][0]["in_contract"], false);
  EXPECT_EQ(report["case"]["combine"], "reduced");
}

TEST(Run, TrainingStepsGiveLosses) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "words.txt") << std::string(4096, 'a') << "some words";
  RunResult result = run_plait(small({"--ranks", "2", "--steps", "2", "--input", folder / "words.txt", "--json", folder / "r.json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  json report = json::parse(test::read_file(folder / "r.json"));
  EXPECT_EQ(report["loss"]["alltoall"].size(), 2U);
  EXPECT_EQ(report["loss"]["alltoall"], report["loss"]["mc2"]);
}

TEST(Verify, TinyCasePassesOnBothEngines) {
  test::TemporaryFolder folder;
  for (const char* engine : {"shm", "threads"}) {
    RunResult result = run_plait(small({"--ranks", "2", "--engine", engine, "--across-ranks", "1,2", "--json", folder / "v.json"}, "verify"));
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_FALSE(json::parse(test::read_file(folder / "v.json")).empty());
  }
}

TEST(Bench, GmmOfACase) {
  RunResult result = run_plait(small({"--ranks", "2", "--seconds", "0.01", "--threads", "1", "--json", "-"}, "bench"));
  EXPECT_EQ(result.exit_code, 2) << "bench needs a part";
  result = run_plait({"bench", "gmm", "--model", "tiny", "--tokens", "8", "--seconds", "0.01", "--threads", "1", "--json", "-"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_FALSE(json::parse(result.out).empty());
}

TEST(Bench, LayerOfACase) {
  RunResult result = run_plait({"bench", "layer", "--model", "tiny", "--tokens", "8", "--seconds", "0.01", "--threads", "1", "--json", "-"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json report = json::parse(result.out);
  EXPECT_EQ(report["shape"]["hidden"], 64);
  for (const char* dispatcher : {"alltoall", "mc2"}) EXPECT_GT(report["dispatchers"][dispatcher]["stages"]["weight_gradient"]["over_bound"], 0);
  result = run_plait({"bench", "layer", "--model", "tiny", "--tokens", "8", "--seconds", "0.01", "--no-backward"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("gate_up"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("weight_gradient"), std::string::npos) << result.out;
}

TEST(InfoCommand, TextAndJsonNameTheSameThings) {
  test::TemporaryFolder folder;
  RunResult result = run_plait({"info", "--json", folder / "i.json"}, {.environment = {{"PLAIT_TIMEOUT", "7.5"}}, .folder = ""});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  json info = json::parse(test::read_file(folder / "i.json"));
  EXPECT_NE(result.out.find(info["chosen_tier"].get<std::string>()), std::string::npos);
  EXPECT_NE(result.out.find("7.5 (default 60). "), std::string::npos) << result.out;
  EXPECT_GE(info["machine"]["usable_cpus"], 1);
  bool found = false;
  for (const auto& knob : info["environment"]) {
    EXPECT_NE(result.out.find(knob["name"].get<std::string>()), std::string::npos);
    EXPECT_FALSE(knob["text"].get<std::string>().empty());
    if (knob["name"] == "PLAIT_TIMEOUT") found = knob["current"] == "7.5" && knob["default"] == "60";
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace plait
