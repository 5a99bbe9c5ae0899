// Inputs at the edges of what is legal: no tokens, skew, weights of 0, sentinel ids, odd strides, one token's order of experts.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/status_macros.h"
#include "support/layer_case.h"
#include "support/layer_oracle_exact.h"

namespace plait::test {
namespace {

/// Runs on threads and compares every rank with the exact definition.
void expect_exact(const LayerInputs& in, const TokenSplit& split, const RankRunOptions& options = {}) {
  const std::vector<RankResult> expected = exact_layer(in, split, options);
  const Result<std::vector<RankResult>> got = run_layer(in, split, {.threads = 1, .kernel = {}}, options);
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  for (size_t rank = 0; rank < split.size(); ++rank) EXPECT_EQ(difference(got.value()[rank], expected[rank]), "") << "rank " << rank;
}

/// A layer whose expert e maps x (one column) to scale[e] * x^2.
LayerInputs square_experts(const std::vector<double>& scales, const std::vector<double>& x, int64_t k, const std::vector<double>& ids,
                           const std::vector<double>& weights) {
  LayerInputs in;
  const auto num_experts = static_cast<int64_t>(scales.size()), tokens = static_cast<int64_t>(x.size());
  in.config.hidden = in.config.intermediate = 1;
  in.config.dtype = DType::f32;
  in.config.activation.kind = ActivationKind::relu2;
  in.config.router.num_experts = num_experts;
  in.config.router.top_k = k;
  in.x = tensor_of(DType::f32, {tokens, 1}, x);
  in.dy = tensor_of(DType::f32, {tokens, 1}, std::vector<double>(x.size(), 1));
  in.gate_up = tensor_of(DType::f32, {num_experts, 1, 1}, std::vector<double>(scales.size(), 1));
  in.down = tensor_of(DType::f32, {num_experts, 1, 1}, scales);
  in.ids = tensor_of(DType::i32, {tokens, k}, ids);
  if (!weights.empty()) in.weights = tensor_of(DType::f32, {tokens, k}, weights);
  return in;
}

TEST(LayerEdges, NoTokensAnywhere) {
  const LayerInputs in = make_inputs(small_config(DType::f32), {.tokens = 0});
  expect_exact(in, {0});
  expect_exact(in, {0, 0, 0, 0});
  expect_exact(in, {0, 0}, {.accumulate = true, .initial_gradient = 5});
}

TEST(LayerEdges, NullPointersWhereThereIsNothing) {
  const LayerConfig config = small_config(DType::f32);
  LayerInputs in = make_inputs(config, {.tokens = 0});
  in.x.view.data = in.dy.view.data = nullptr;
  const Result<std::vector<RankResult>> got = run_layer(in, {0, 0});
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  for (double g : to_vector(got.value()[1].gate_up)) EXPECT_EQ(g, 0);
}

TEST(LayerEdges, OneRowBetweenTwoOfFourRanks) {
  LayerConfig config = small_config(DType::f32);
  config.router.num_experts = 4;
  config.router.top_k = 1;
  LayerInputs in = make_inputs(config, {.tokens = 1, .given_routing = true});
  set(in.ids, 0, 2);
  expect_exact(in, {1, 0, 0, 0});
  EXPECT_EQ(difference_across_splits(in, {{1}, {1, 0, 0, 0}, {0, 0, 0, 1}}), "");
}

TEST(LayerEdges, ARankWithoutTokensReceivesFromAll) {
  LayerConfig config = small_config(DType::bf16);
  config.router.num_experts = 4;
  config.router.top_k = 1;
  LayerInputs in = make_inputs(config, {.tokens = 9, .given_routing = true});
  for (int64_t i = 0; i < 9; ++i) set(in.ids, i, 3);
  EXPECT_EQ(difference_across_splits(in, {{9}, {4, 2, 3, 0}}), "");
  expect_exact(in, {4, 2, 3, 0});
}

TEST(LayerEdges, SkewToOneRankAndBack) {
  LayerConfig config = small_config(DType::bf16);
  config.router.top_k = 2;
  LayerInputs in = make_inputs(config, {.tokens = 256, .given_routing = true});
  for (int64_t first : {0, 6, 0}) {
    for (int64_t i = 0; i < 512; ++i) set(in.ids, i, static_cast<double>(first + i % 2));
    EXPECT_EQ(difference_across_splits(in, {{256}, {64, 64, 64, 64}}), "") << "experts " << first << " and " << first + 1;
  }
}

TEST(LayerEdges, SkewCostsMemoryOnlyWhereTheRowsGo) {
  LayerConfig config = small_config(DType::f32);
  config.hidden = 128;
  config.intermediate = 128;
  config.router.top_k = 2;
  LayerInputs in = make_inputs(config, {.tokens = 1024, .given_routing = true});
  for (int64_t i = 0; i < 2048; ++i) set(in.ids, i, static_cast<double>(i % 2));
  const TokenSplit split = {256, 256, 256, 256};
  std::vector<int64_t> peak(4), window(4);
  const std::vector<Status> statuses = run_with_contexts(4, {.threads = 1, .kernel = {}}, [&](const Context& context, Group& group) {
    RankResult result;
    Status status = run_rank(context, group, in, split, result);
    const auto rank = static_cast<size_t>(group.rank());
    peak[rank] = context.arena().peak_bytes();
    window[rank] = group.peak_window_bytes();
    return status;
  });
  for (const Status& status : statuses) ASSERT_TRUE(status.ok()) << status.to_string();
  for (size_t rank = 1; rank < 4; ++rank) {
    EXPECT_LT(peak[rank], peak[0] / 2) << "rank " << rank;
    EXPECT_LT(window[rank], window[0] / 2) << "rank " << rank;
  }
}

TEST(LayerEdges, AnExpertWithoutRowsHasZeroGradientsAndKeepsItsAccumulator) {
  LayerConfig config = small_config(DType::f32);
  config.expert_bias = true;
  LayerInputs in = make_inputs(config, {.tokens = 10, .given_routing = true});
  for (int64_t i = 0; i < in.ids.view.num_elements(); ++i) {
    if (get(in.ids, i) == 3) set(in.ids, i, 2);
  }
  const std::vector<RankResult> plain = run_layer(in, {6, 4}).take();
  for (double g : to_vector(plain[0].gate_up.view[3])) EXPECT_EQ(g, 0);
  for (double g : to_vector(plain[0].down.view[3])) EXPECT_EQ(g, 0);
  const RankRunOptions accumulate{.accumulate = true, .initial_gradient = 5};
  expect_exact(in, {6, 4}, accumulate);
  const std::vector<RankResult> added = run_layer(in, {6, 4}, {.threads = 1, .kernel = {}}, accumulate).take();
  for (double g : to_vector(added[0].gate_up.view[3])) EXPECT_EQ(g, 5);
  expect_exact(in, {6, 4}, {.accumulate = true, .initial_gradient = -0.0F});  // adding a sum of nothing would make it +0
}

TEST(LayerEdges, WeightsBelongToTheirEntry) {
  const LayerInputs in = square_experts({1, 1}, {1, 1}, 2, {1, 0, 0, 1}, {1, 10, 100, 1000});
  for (const TokenSplit& split : {TokenSplit{2}, TokenSplit{1, 1}}) {
    const std::vector<RankResult> got = run_layer(in, split).take();
    const RankResult all = joined(got);
    EXPECT_EQ(to_vector(all.y), (std::vector<double>{11, 1100}));
    EXPECT_EQ(to_vector(all.dweights), (std::vector<double>{1, 1, 1, 1}));
    EXPECT_EQ(to_vector(all.dx), (std::vector<double>{22, 2200}));
  }
}

TEST(LayerEdges, WeightsAreAppliedOnce) {
  LayerInputs in = make_inputs(small_config(DType::bf16), {.tokens = 11, .given_routing = true});
  in.weights = {};
  const RankResult ones = joined(run_layer(in, {5, 6}).take());
  in.weights = make_tensor(DType::f32, {11, 3});
  for (int64_t i = 0; i < 33; ++i) set(in.weights, i, 2);
  const RankResult twos = joined(run_layer(in, {5, 6}).take());
  for (Tensor RankResult::*member : {&RankResult::y, &RankResult::dx, &RankResult::gate_up, &RankResult::down}) {
    for (int64_t i = 0; i < (ones.*member).view.num_elements(); ++i) EXPECT_EQ(get(twos.*member, i), 2 * get(ones.*member, i));
  }
  EXPECT_BITS_EQ(twos.dweights, ones.dweights);
}

TEST(LayerEdges, SumIsATreeOverExpertsNotOverSlots) {
  for (const std::vector<double>& ids : {std::vector<double>{0, 1, 2, 3}, std::vector<double>{2, 0, 3, 1}}) {
    const LayerInputs in = square_experts({1e8, 1, -1e8, 1}, {1}, 4, ids, {});
    for (const TokenSplit& split : {TokenSplit{1}, TokenSplit{0, 1}, TokenSplit{0, 0, 1, 0}}) {
      const RankResult got = joined(run_layer(in, split).take());
      EXPECT_EQ(get(got.y, 0), 0) << split.size() << " ranks";  // (1e8 + 1) + (-1e8 + 1): each side loses its 1
    }
  }
}

TEST(LayerEdges, WeightZeroHidesNaNInExpertRows) {
  LayerInputs in = make_inputs(small_config(DType::bf16), {.tokens = 12, .given_routing = true});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int64_t i = 0; i < 19 * 26; ++i) set(in.gate_up.view[5], i, nan);  // expert 5 gives nothing but NaN
  for (int64_t i = 0; i < 36; ++i) {
    if (get(in.ids, i) == 5) set(in.weights, i, i % 2 == 0 ? 0.0 : -0.0);
  }
  for (const TokenSplit& split : {TokenSplit{12}, TokenSplit{7, 5}}) {
    const RankResult got = joined(run_layer(in, split).take());
    for (Tensor RankResult::*member : {&RankResult::y, &RankResult::dx, &RankResult::gate_up, &RankResult::down}) {
      for (double v : to_vector(got.*member)) ASSERT_FALSE(std::isnan(v));
    }
    for (double g : to_vector(got.down.view[5])) EXPECT_EQ(g, 0);
    for (int64_t i = 0; i < 36; ++i) EXPECT_EQ(std::isnan(get(got.dweights, i)), get(in.ids, i) == 5) << i;
    expect_exact(in, split);
  }
}

TEST(LayerEdges, ATinyWeightIsAbsentToo) {
  LayerInputs in = make_inputs(small_config(DType::f32), {.tokens = 8, .given_routing = true});
  for (int64_t i = 0; i < 24; i += 2) set(in.weights, i, 0x1p-127);
  expect_exact(in, {8});
  expect_exact(in, {3, 5});
}

TEST(LayerEdges, WeightZeroLetsNonFiniteGradientsReachMatricesButNoBias) {
  LayerConfig config = small_config(DType::f32);
  config.expert_bias = true;
  LayerInputs in = make_inputs(config, {.tokens = 8, .given_routing = true});
  for (int64_t i = 6; i < 9; ++i) set(in.weights, i, 0);
  set(in.dy, 2 * 19 + 5, std::numeric_limits<double>::infinity());  // token 2, all of whose weights are 0
  expect_exact(in, {8});
  expect_exact(in, {3, 5});
  const RankResult got = joined(run_layer(in, {3, 5}).take());
  const auto expert = static_cast<int64_t>(get(in.ids, 6));
  EXPECT_TRUE(std::isnan(get(got.down.view[expert], 5)));
  for (double g : to_vector(got.down_bias)) EXPECT_TRUE(std::isfinite(g));
  for (double v : to_vector(got.dx)) EXPECT_TRUE(std::isfinite(v));
}

TEST(LayerEdges, SentinelIdsContributeNothing) {
  LayerConfig config = small_config(DType::f32);
  config.sentinel = true;
  config.expert_bias = true;
  LayerInputs in = make_inputs(config, {.tokens = 9, .given_routing = true});
  for (int64_t i = 0; i < 27; i += 4) set(in.ids, i, 8 + static_cast<double>(i % 3));
  for (int64_t i = 12; i < 15; ++i) set(in.ids, i, 8);  // token 4 has no expert at all
  for (bool recompute : {false, true}) {
    in.config.recompute = recompute;
    expect_exact(in, {9});
    expect_exact(in, {4, 5});
  }
  const RankResult got = joined(run_layer(in, {4, 5}).take());
  for (int64_t j = 0; j < 19; ++j) EXPECT_EQ(get(got.y, 4 * 19 + j), 0);
  for (int64_t i = 12; i < 15; ++i) EXPECT_EQ(get(got.dweights, i), 0);
}

TEST(LayerEdges, SharedExpertCountsOncePerTokenWhateverTheRanks) {
  LayerConfig config = small_config(DType::f32);
  config.activation.kind = ActivationKind::relu2;
  config.hidden = 1;
  config.shared_intermediate = 1;
  LayerInputs in = make_inputs(config, {.tokens = 8, .given_routing = true});
  for (const Tensor& t : {in.x, in.shared_gate_up, in.shared_down, in.dy}) {
    for (int64_t i = 0; i < t.view.num_elements(); ++i) set(t, i, 1);
  }
  for (int64_t i = 0; i < 24; ++i) set(in.weights, i, 0);
  for (const TokenSplit& split : {TokenSplit{8}, TokenSplit{3, 5}, TokenSplit{2, 2, 0, 4}}) {
    const std::vector<RankResult> ranks = run_layer(in, split).take();
    for (double y : to_vector(joined(ranks).y)) EXPECT_EQ(y, 1);
    double down = 0, gate_up = 0;
    for (const RankResult& rank : ranks) {
      down += get(rank.shared_down, 0);
      gate_up += get(rank.shared_gate_up, 0);
    }
    EXPECT_EQ(down, 8) << split.size() << " ranks";
    EXPECT_EQ(gate_up, 16) << split.size() << " ranks";
  }
}

TEST(LayerEdges, EveryExpertOfATokenReachesItsGradient) {
  LayerConfig config = small_config(DType::f32);
  config.router.num_experts = config.router.top_k = 2;
  const LayerInputs in = make_inputs(config, {.tokens = 6});
  EXPECT_EQ(difference_across_splits(in, {{6}, {3, 3}}), "");
  const RankResult got = joined(run_layer(in, {3, 3}).take());
  for (double d : to_vector(got.dweights)) EXPECT_NE(d, 0);
  expect_exact(in, {3, 3});
}

/// Every element lies two apart, rows in descending order.
Tensor strided(const Tensor& t) {
  const int64_t rows = t.view.shape[0], columns = t.view.shape[1];
  Tensor wide = make_tensor(t.view.dtype, {rows, 2 * columns});
  Tensor view{wide.buffer, wide.view};
  view.view.shape[1] = columns;
  view.view.strides = {-2 * columns, 2};
  view.view.data = wide.view.at(rows - 1);
  for (int64_t i = 0; i < t.view.num_elements(); ++i) set(view, i, get(t, i));
  return view;
}

TEST(LayerEdges, AnyStridesOfTokensAndGradients) {
  LayerConfig config = small_config(DType::bf16);
  config.shared_intermediate = 6;
  config.shared_gate = true;
  const LayerInputs in = make_inputs(config, {.tokens = 10});
  const std::vector<RankResult> expected = run_layer(in, {6, 4}).take();
  const TokenSplit split = {6, 4};
  const std::vector<Status> statuses = run_with_contexts(2, {.threads = 2, .kernel = {}}, [&](const Context& context, Group& group) -> Status {
    const int rank = group.rank();
    const Tensor x = strided({nullptr, rank_rows(in.x, split, rank)}), dy = strided({nullptr, rank_rows(in.dy, split, rank)});
    RankResult r = make_rank_result(in, split, rank);
    r.y = strided(r.y);
    r.dx = strided(r.dx);
    r.dweights = strided(r.dweights);
    const LayerWeights w = rank_weights(in, rank, 2);
    PLAIT_ASSIGN_OR_RETURN(const LayerState state, layer_forward(context, group, in.config, w, x, r.y));
    PLAIT_RETURN_IF_ERROR(layer_backward(context, group, in.config, w, x, state, dy, r.dx, gradients_of(r), r.dweights));
    r.losses = state.losses;
    EXPECT_EQ(difference(r, expected[static_cast<size_t>(rank)]), "") << "rank " << rank;
    return {};
  });
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(LayerEdges, AnExpandedGradientOfStrideZero) {
  LayerInputs in = make_inputs(small_config(DType::f32), {.tokens = 7});
  for (int64_t i = 0; i < in.dy.view.num_elements(); ++i) set(in.dy, i, 1);
  const RankResult expected = joined(run_layer(in, {4, 3}).take());
  in.dy.view.strides = {0, 0};
  EXPECT_EQ(difference(joined(run_layer(in, {4, 3}).take()), expected), "");
}

/// A three-dimensional parameter stored with its last two dimensions exchanged.
Tensor stored_transposed(const Tensor& t) {
  const auto& s = t.view.shape;
  Tensor stored = make_tensor(t.view.dtype, {s[0], s[2], s[1]});
  stored.view = stored.view.transposed(1, 2);
  for (int64_t i = 0; i < t.view.num_elements(); ++i) set(stored, i, get(t, i));
  return stored;
}

TEST(LayerEdges, WeightsAndTheirGradientsStoredTransposed) {
  LayerInputs in = make_inputs(small_config(DType::bf16), {.tokens = 21});
  const RankResult expected = joined(run_layer(in, {21}).take());
  in.gate_up = stored_transposed(in.gate_up);
  in.down = stored_transposed(in.down);
  EXPECT_EQ(difference_across_splits(in, {{21}, {10, 11}}), "");
  const std::vector<Status> statuses = run_with_contexts(1, {.threads = 1, .kernel = {}}, [&](const Context& context, Group& group) -> Status {
    RankResult r = make_rank_result(in, {21}, 0);
    r.gate_up = stored_transposed(r.gate_up);
    r.down = stored_transposed(r.down);
    const LayerWeights w = rank_weights(in, 0, 1);
    PLAIT_ASSIGN_OR_RETURN(const LayerState state, layer_forward(context, group, in.config, w, in.x, r.y));
    PLAIT_RETURN_IF_ERROR(layer_backward(context, group, in.config, w, in.x, state, in.dy, r.dx, gradients_of(r), r.dweights));
    EXPECT_EQ(difference(r, expected), "");
    return {};
  });
  EXPECT_TRUE(statuses[0].ok()) << statuses[0].to_string();
}

TEST(LayerEdges, SkippedGradientsAreNotTouched) {
  const LayerInputs in = make_inputs(small_config(DType::f32), {.tokens = 5});
  const RankResult expected = joined(run_layer(in, {5}).take());
  const std::vector<Status> statuses = run_with_contexts(1, {.threads = 1, .kernel = {}}, [&](const Context& context, Group& group) -> Status {
    RankResult r = make_rank_result(in, {5}, 0);
    const LayerWeights w = rank_weights(in, 0, 1);
    PLAIT_ASSIGN_OR_RETURN(const LayerState state, layer_forward(context, group, in.config, w, in.x, r.y));
    LayerGradients only_down;
    only_down.down = r.down;
    only_down.accumulate = false;
    PLAIT_RETURN_IF_ERROR(layer_backward(context, group, in.config, w, in.x, state, in.dy, r.dx, only_down));
    EXPECT_BITS_EQ(r.down, expected.down);
    EXPECT_BITS_EQ(r.dx, expected.dx);
    EXPECT_TRUE(std::isnan(get(r.gate_up, 0)));
    return {};
  });
  EXPECT_TRUE(statuses[0].ok()) << statuses[0].to_string();
}

}  // namespace
}  // namespace plait::test
