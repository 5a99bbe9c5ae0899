// The property of the fused dispatchers: y, dx, dweights and both dW have the bits of the unfused stage sequence (eager), whatever the ranks,
// experts, routing, threads, tiles and the order in which peers seem to come.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/status_macros.h"
#include "plait/counters.h"
#include "routing/window_buffer.h"
#include "support/delayed_group.h"
#include "support/hooked_group.h"
#include "support/layer_case.h"
#include "support/test_tensors.h"

namespace plait::test {
namespace {

enum class Load { even, one_expert, half_the_experts, last_rank };
constexpr Load loads[] = {Load::even, Load::one_expert, Load::half_the_experts, Load::last_rank};

struct Property {
  int ranks;
  int64_t experts_per_rank;
  DType dtype = DType::bf16;
  Load load = Load::even;
  int threads = 1;
  bool recompute = false;
  uint64_t seed = 0;
  int64_t tokens = 24, hidden = 19, intermediate = 13;
  TileShape tile = {};  ///< of the fused runs

  std::string to_string() const {
    return std::to_string(ranks) + " ranks of " + std::to_string(experts_per_rank) + " experts, " + std::string(name(dtype)) + ", load " +
           std::to_string(static_cast<int>(load)) + ", " + std::to_string(threads) + " threads, recompute " + std::to_string(recompute) + ", tile " +
           std::to_string(tile.rows) + " x " + std::to_string(tile.columns) + ", seed " + std::to_string(seed);
  }
};

int32_t draw_expert(const Property& p, std::mt19937_64& random) {
  const auto num_experts = static_cast<uint64_t>(p.ranks * p.experts_per_rank);
  switch (p.load) {
    case Load::one_expert:
      return static_cast<int32_t>(num_experts / 2);
    case Load::half_the_experts:
      return static_cast<int32_t>(random() % num_experts / 2 * 2);
    case Load::last_rank:
      return static_cast<int32_t>(num_experts - 1 - random() % static_cast<uint64_t>(p.experts_per_rank));
    default:
      return static_cast<int32_t>(random() % num_experts);
  }
}

LayerInputs inputs_of(const Property& p, std::mt19937_64& random) {
  LayerConfig config = small_config(p.dtype);
  config.hidden = p.hidden;
  config.intermediate = p.intermediate;
  config.recompute = p.recompute;
  config.expert_bias = p.seed % 2 == 0;
  config.shared_intermediate = p.seed % 3 == 0 ? 0 : 11;
  config.shared_gate = p.seed % 3 == 2;
  config.router.num_experts = p.ranks * p.experts_per_rank;
  config.router.top_k = std::min<int64_t>(3, config.router.num_experts);
  LayerInputs in = make_inputs(config, {.tokens = p.tokens, .seed = p.seed, .given_routing = true});
  for (int64_t i = 0; i < in.ids.view.num_elements(); ++i) {
    set(in.ids, i, draw_expert(p, random));
    if (random() % 7 == 0) set(in.weights, i, 0);
  }
  return in;
}

/// Uneven, some ranks without tokens.
TokenSplit split_of(const Property& p, std::mt19937_64& random) {
  TokenSplit split(static_cast<size_t>(p.ranks), 0);
  for (int64_t t = 0; t < p.tokens; ++t) ++split[random() % 3 == 0 ? 0 : random() % split.size()];
  return split;
}

/// Two steps, so that the second one meets the memory of the first; the second's results.
std::vector<RankResult> run(const Property& p, LayerInputs in, const TokenSplit& split, Dispatcher dispatcher, const TileShape& tile,
                            uint64_t delay_seed) {
  in.config.dispatcher = dispatcher;
  std::vector<RankResult> results(split.size());
  const std::vector<Status> statuses = run_with_contexts(p.ranks, {.threads = p.threads, .tile = tile}, [&](const Context& context, Group& group) {
    DelayedGroup delayed(group, delay_seed + static_cast<uint64_t>(group.rank()));
    for (int step = 0; step < 2; ++step) PLAIT_RETURN_IF_ERROR(run_rank(context, delayed, in, split, results[static_cast<size_t>(group.rank())]));
    return Status();
  });
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << name(dispatcher) << ": " << status.to_string();
  return results;
}

void expect_property(const Property& p) {
  SCOPED_TRACE(p.to_string());
  std::mt19937_64 random(p.seed);
  const LayerInputs in = inputs_of(p, random);
  const TokenSplit split = split_of(p, random);
  const std::vector<RankResult> expected = run(p, in, split, Dispatcher::eager, {}, 0);
  for (const Dispatcher dispatcher : {Dispatcher::mc2, Dispatcher::allgather, Dispatcher::automatic}) {
    const std::vector<RankResult> got = run(p, in, split, dispatcher, p.tile, random());
    for (size_t rank = 0; rank < split.size(); ++rank) {
      ASSERT_EQ(difference(got[rank], expected[rank]), "") << name(dispatcher) << ", rank " << rank;
    }
  }
}

bool full_product() {
  const char* value = std::getenv("PLAIT_TEST_FULL");
  return value != nullptr && *value != '\0';
}

/// From one row and panel to no limit: blocks of an expert, of a rank, and cut anywhere.
constexpr TileShape tile_shapes[] = {{}, {1, 1}, {4, 64}, {7, 128}};

class FusedLayer : public testing::TestWithParam<std::tuple<int, int64_t>> {};

TEST_P(FusedLayer, HasTheBitsOfTheUnfusedSequence) {
  const auto [ranks, experts_per_rank] = GetParam();
  constexpr DType types[] = {DType::bf16, DType::f32, DType::f16};
  constexpr int thread_counts[] = {1, 2, 5};
  uint64_t seed = static_cast<uint64_t>(100 * ranks + experts_per_rank);
  std::mt19937 random(static_cast<uint32_t>(seed));
  for (const Load load : loads) {
    for (int variant = 0; variant < (full_product() ? 9 : 1); ++variant) {
      const size_t v = full_product() ? static_cast<size_t>(variant) : random() % 9;
      expect_property({.ranks = ranks,
                       .experts_per_rank = experts_per_rank,
                       .dtype = types[v % 3],
                       .load = load,
                       .threads = thread_counts[v / 3],
                       .recompute = random() % 2 == 0,
                       .seed = ++seed,
                       .tile = tile_shapes[random() % 4]});
    }
  }
}
INSTANTIATE_TEST_SUITE_P(RanksAndExperts, FusedLayer, testing::Combine(testing::Values(1, 2, 3, 4, 7, 8), testing::Values<int64_t>(1, 2, 5, 32, 64)),
                         [](const auto& param_info) {
                           return std::to_string(std::get<0>(param_info.param)) + "x" + std::to_string(std::get<1>(param_info.param));
                         });

/// Outside the contract: close, deterministic, and all ranks or none.
TEST(FusedLayerCombine, ReducedIsCloseAndSaysThatItIsOutside) {
  LayerConfig config = small_config(DType::f32);
  config.router.num_experts = 6;  // ranks do not fit the tree
  config.router.top_k = 5;
  config.dispatcher = Dispatcher::allgather;
  const LayerInputs exact = make_inputs(config, {.tokens = 40, .seed = 3});
  LayerInputs reduced = exact;
  reduced.config.combine = Combine::reduced;
  EXPECT_TRUE(exact.config.in_contract());
  EXPECT_FALSE(reduced.config.in_contract());
  const TokenSplit split = {15, 0, 25};
  const RankResult a = joined(run_layer(exact, split).take()), b = joined(run_layer(reduced, split).take());
  EXPECT_NE(difference(b, a), "");
  for (Tensor RankResult::*result : {&RankResult::y, &RankResult::dx}) {
    for (int64_t i = 0; i < (a.*result).view.num_elements(); ++i) EXPECT_NEAR(get(b.*result, i), get(a.*result, i), 1e-4);
  }
  EXPECT_EQ(difference(joined(run_layer(reduced, split).take()), b), "");

  const std::vector<Status> statuses = run_with_contexts(3, {.threads = 1, .kernel = {}}, [&](const Context& context, Group& group) {
    RankResult result;
    const Status status = run_rank(context, group, group.rank() == 1 ? reduced : exact, split, result);
    EXPECT_NE(status.message().find("inside the bit contract: rank 1 has no, rank 0 has yes"), std::string::npos) << status.to_string();
    return Status();
  });
  for (const Status& status : statuses) EXPECT_TRUE(status.ok());
}

/// Blocks of rows and of columns that are cut: more rows than a tile has, from several ranks, and more columns.
TEST(FusedLayerTiles, ManyBlocksOfRowsAndColumns) {
  for (const Load load : {Load::even, Load::one_expert}) {
    for (const int threads : {1, 3}) {
      expect_property(
          {.ranks = 3, .experts_per_rank = 1, .load = load, .threads = threads, .seed = 77, .tokens = 700, .hidden = 300, .intermediate = 140});
    }
  }
}

void wait_until(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(condition());
}

/// Rank 1's gradients come only when rank 0 has begun weight gradients with its own rows: mc2 must not wait for all of them.
TEST(FusedLayerGradients, BeginOnAPartOfTheirRows) {
  for (const int threads : {1, 3}) {
    for (const bool accumulate : {false, true}) {
      LayerConfig config = small_config(DType::bf16);
      config.router.num_experts = 2;
      config.router.top_k = 1;
      LayerInputs in = make_inputs(config, {.tokens = 120, .seed = 5, .given_routing = true});
      const TokenSplit split = {61, 59};
      const RankRunOptions options{.accumulate = accumulate};
      in.config.dispatcher = Dispatcher::eager;
      const RankResult expected = joined(run_layer(in, split, {.threads = 1}, options).take());
      in.config.dispatcher = Dispatcher::mc2;
      std::vector<RankResult> results(2);
      std::atomic<const Recorder*> first = nullptr;
      const std::vector<Status> statuses = run_with_contexts(2, {.threads = threads, .tile = {16, 64}}, [&](const Context& context, Group& group) {
        if (group.rank() == 0) first = &context.recorder();
        std::atomic<int> signals = 0;
        HookedGroup hooked(group, [&](Group& inner, const GroupCall& call) {
          const bool backward_rows = call.kind == GroupCall::Kind::signal && call.channel == rows_there && ++signals == 2;
          if (inner.rank() == 0 || !backward_rows) return;
          wait_until([&] { return first.load() != nullptr && first.load()->value(Counter::early_tiles) > 0; });
        });
        Status status = run_rank(context, hooked, in, split, results[static_cast<size_t>(group.rank())], options);
        const Status left = group.barrier("the recorder is still needed");
        return status.ok() ? left : status;
      });
      for (const Status& status : statuses) ASSERT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(difference(joined(results), expected), "") << threads << " threads, accumulate " << accumulate;
    }
  }
}

/// The shared expert is among mc2's tiles, where it fills gaps, and not a stage of its own before or after them.
TEST(FusedLayerShared, RunsAsTiles) {
  auto tiles_of = [](int64_t shared_intermediate, bool gate, bool recompute) {
    LayerConfig config = small_config(DType::f32);
    config.dispatcher = Dispatcher::mc2;
    config.router.top_k = config.router.num_experts;  // as many tiles whatever the routing
    config.shared_intermediate = shared_intermediate;
    config.shared_gate = gate;
    config.recompute = recompute;
    const LayerInputs in = make_inputs(config, {.tokens = 20, .seed = 9});
    int64_t tiles = 0;
    const std::vector<Status> statuses = run_with_contexts(1, {.threads = 1}, [&](const Context& context, Group& group) {
      RankResult result;
      const Status status = run_rank(context, group, in, {20}, result);
      tiles = context.recorder().value(Counter::tiles);
      return status;
    });
    EXPECT_TRUE(statuses.front().ok()) << statuses.front().to_string();
    return tiles;
  };
  // One thread runs a stage as one task: three in forward, three in backward and the weight gradients; with the gate its gradient.
  EXPECT_EQ(tiles_of(11, false, false), tiles_of(0, false, false) + 7);
  EXPECT_EQ(tiles_of(11, true, false), tiles_of(0, false, false) + 8);
  EXPECT_EQ(tiles_of(11, false, true), tiles_of(0, false, true) + 8);
  EXPECT_EQ(tiles_of(11, true, true), tiles_of(0, false, true) + 11);
}

}  // namespace
}  // namespace plait::test
