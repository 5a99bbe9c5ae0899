/// The examples of docs/operators.md, run as they stand there.

#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "plait/plait.h"
#include "support/test_tensors.h"

namespace plait::test {
namespace {

Tensor make(DType dtype, std::initializer_list<int64_t> shape, const std::vector<double>& values = {}) {
  return values.empty() ? make_tensor(dtype, shape) : tensor_of(dtype, shape, values);
}

class OperatorsDoc : public ::testing::Test {
 protected:
  std::unique_ptr<Context> context = Context::create({.threads = 1, .kernel = ""}).take();
};

void expect_near(const Tensor& t, const std::vector<double>& values) {
  std::vector<double> found = to_vector(t);
  ASSERT_EQ(found.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(found[i], values[i], 1e-6) << i;
}

TEST_F(OperatorsDoc, Router) {
  plait::RouterConfig config{.num_experts = 4, .top_k = 2, .norm_topk = true};
  plait::Tensor logits = make(plait::DType::f32, {1, 4}, {0, std::log(2), std::log(4), 0});
  plait::Tensor ids = make(plait::DType::i32, {1, 2}), weights = make(plait::DType::f32, {1, 2});
  plait::Result<plait::RouterLosses> losses = plait::route(*context, config, logits, {}, ids, weights, {});
  ASSERT_TRUE(losses.ok());
  expect_near(ids, {2, 1});
  expect_near(weights, {2.0 / 3, 1.0 / 3});
  EXPECT_NEAR(losses->load_balancing, 1.5, 1e-6);
}

TEST_F(OperatorsDoc, Permute) {
  plait::Tensor ids = make(plait::DType::i32, {2, 2}, {1, 0, 0, 1});
  plait::Tensor x = make(plait::DType::f32, {2, 1}, {10, 20});
  plait::Tensor position = make(plait::DType::i32, {4}), rows = make(plait::DType::f32, {4, 1});
  plait::Result<std::vector<int64_t>> counts = plait::sort_by_expert(*context, ids, 2, false, position);
  plait::Status status = plait::permute(*context, x, position, 2, rows);
  ASSERT_TRUE(counts.ok() && status.ok());
  EXPECT_EQ(*counts, (std::vector<int64_t>{2, 2}));
  expect_near(position, {2, 0, 1, 3});
  expect_near(rows, {10, 20, 10, 20});
}

TEST_F(OperatorsDoc, GroupedMatmul) {
  plait::Tensor x = make(plait::DType::f32, {4, 2}, {1, 0, 0, 1, 1, 1, 9, 9});
  plait::Tensor weight = make(plait::DType::f32, {2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  plait::Tensor y = make(plait::DType::f32, {4, 2});
  const std::vector<int64_t> rows_per_group{2, 1};
  plait::Status status = plait::grouped_matmul(*context, x, weight, rows_per_group, {}, y);
  ASSERT_TRUE(status.ok());
  expect_near(y, {1, 2, 3, 4, 12, 14, 0, 0});
}

TEST_F(OperatorsDoc, Activation) {
  plait::Activation activation{.kind = plait::ActivationKind::relu2};
  plait::Tensor h = make(plait::DType::f32, {1, 3}, {-1, 2, 3}), act = make(plait::DType::f32, {1, 3});
  plait::Status status = plait::activation_forward(*context, activation, h, act);
  ASSERT_TRUE(status.ok());
  expect_near(act, {0, 4, 9});
}

void expect_ok(const std::vector<Status>& statuses) {
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST_F(OperatorsDoc, ExchangeOfCounts) {
  expect_ok(run_ranks(2, {}, [](Group& group) {
    plait::ExpertPlacement placement{.num_experts = 4, .num_ranks = 2};
    std::vector<int64_t> mine = group.rank() == 0 ? std::vector<int64_t>{1, 0, 2, 0} : std::vector<int64_t>{0, 3, 0, 0};
    plait::CallSignature signature;
    signature.operation = "example";
    signature.num_experts = 4;
    plait::Result<plait::CountsMatrix> matrix = plait::exchange_counts(group, placement, signature, mine, {});
    EXPECT_TRUE(matrix.ok() && matrix->at(0, 2) == 2 && matrix->at(1, 1) == 3);
    return matrix.status();
  }));
}

TEST_F(OperatorsDoc, Layer) {
  expect_ok(run_ranks(1, {}, [this](Group& group) {
    plait::LayerConfig config;
    config.hidden = 2;
    config.intermediate = 1;
    config.dtype = plait::DType::f32;
    config.router = {.num_experts = 2, .top_k = 1};
    config.activation.kind = plait::ActivationKind::relu2;
    plait::Tensor gate_up = make(plait::DType::f32, {2, 2, 1}, {1, 0, 0, 1});
    plait::Tensor down = make(plait::DType::f32, {2, 1, 2}, {1, 1, 2, 2});
    plait::LayerWeights weights;
    weights.gate_up = gate_up;
    weights.down = down;
    plait::Tensor x = make(plait::DType::f32, {2, 2}, {3, 5, 3, 5}), y = make(plait::DType::f32, {2, 2});
    plait::Tensor ids = make(plait::DType::i32, {2, 1}, {0, 1});
    plait::GivenRouting given;
    given.ids = ids;
    plait::Result<plait::LayerState> state = plait::layer_forward(*context, group, config, weights, x, y, given);
    EXPECT_TRUE(state.ok());
    expect_near(y, {9, 9, 50, 50});
    return state.status();
  }));
}

TEST(OperatorsDocOnRanks, FusedPair) {
  expect_ok(run_ranks(2, {}, [](Group& group) {
    auto context = Context::create({.threads = 1, .kernel = ""}).take();
    const bool first = group.rank() == 0;
    plait::Tensor x = first ? make(plait::DType::f32, {2, 1}, {3, 4}) : make(plait::DType::f32, {1, 1}, {5});
    plait::Tensor weight = make(plait::DType::f32, {1, 1, 1}, {first ? 10.0 : 100.0});
    const std::vector<int64_t> send = first ? std::vector<int64_t>{0, 2} : std::vector<int64_t>{1, 0};
    const std::vector<int64_t> recv = first ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{2, 0};
    plait::Result<plait::AllToAllVGmmResult> there = plait::alltoallv_grouped_matmul(*context, group, x, weight, send, recv);
    plait::Result<plait::AllToAllVGmmResult> back = plait::grouped_matmul_alltoallv(*context, group, there->y, weight, recv, send);
    if (!back.ok()) return back.status();
    expect_near(there->y, first ? std::vector<double>{50} : std::vector<double>{300, 400});
    expect_near(back->y, first ? std::vector<double>{30000, 40000} : std::vector<double>{500});
    return Status();
  }));
}

TEST(OperatorsDocOnRanks, FusedExpert) {
  expect_ok(run_ranks(1, {}, [](Group& group) {
    auto context = Context::create({.threads = 1, .kernel = ""}).take();
    plait::Tensor up = make(plait::DType::f32, {2, 1, 1}, {1, 3}), down = make(plait::DType::f32, {2, 1, 1}, {1, 10});
    plait::Tensor x = make(plait::DType::f32, {1, 2, 1}, {2, 4});
    plait::Tensor ids = make(plait::DType::i32, {1, 2, 1}, {0, 1});
    plait::FusedExpertOptions options;
    options.activation.kind = plait::ActivationKind::relu2;  // without a gate
    plait::FusedExpertWeights weights{.up = up, .down = down};
    plait::Result<plait::FusedExpertResult> result = plait::mc2_fused_expert(*context, group, x, weights, ids, {}, options);
    if (!result.ok()) return result.status();
    expect_near(result->y, {4, 1440});
    return Status();
  }));
}

std::string without_spaces(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (!std::isspace(static_cast<unsigned char>(c))) out += c;
  }
  return out;
}

/// Lines of code only, spaces removed: formatting may differ, words may not.
TEST_F(OperatorsDoc, ExamplesAreTheOnesAbove) {
  std::ifstream source(PLAIT_SOURCE_DIR "/tests/moe/operators_doc_test.cc");
  std::string tested = without_spaces(std::string(std::istreambuf_iterator<char>(source), {}));
  std::ifstream page(PLAIT_SOURCE_DIR "/docs/operators.md");
  std::string line, block;
  bool inside = false;
  int num_blocks = 0;
  while (std::getline(page, line)) {
    if (inside && line == "```") {
      EXPECT_NE(tested.find(without_spaces(block)), std::string::npos) << block;
      ++num_blocks;
      inside = false;
    } else if (inside && line.rfind("//", 0) != 0) {
      block += line + "\n";
    } else if (line == "```cpp") {
      inside = true;
      block.clear();
    }
  }
  EXPECT_EQ(num_blocks, 8);
}

}  // namespace
}  // namespace plait::test
