/// Every fused operator gives the bits of the sequence that it replaces, whatever the ranks, rows, types, threads and order of arrival.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "ops/alltoallv_gmm_support.h"
#include "plait/alltoallv_gmm.h"
#include "plait/counters.h"
#include "support/test_tensors.h"

namespace plait::test {
namespace {

/// What one rank passes to the operators. Bits of the case's seed choose layouts and optional operands.
struct RankInputs {
  RankInputs(const PairCase& c, int rank)
      : has_bias(c.seed % 2 == 0), has_shared(c.seed % 3 != 0), transposed(c.seed % 5 < 2), strided(c.seed % 7 < 3), accumulate(c.seed % 4 < 2) {
    const int64_t home = c.num_home_rows(rank), at_experts = c.num_expert_rows(rank), tokens = rank * 3;
    const bool narrow = rank % 2 == 1;  // ranks differ in what is their own business
    add(x_home, c.rows(rank, 1, home, c.k), strided && narrow);
    add(x_experts, c.rows(rank, 2, at_experts, c.k), strided && narrow);
    add(dy_home, c.rows(rank, 3, home, c.n), strided && !narrow);
    add(dy_experts, c.rows(rank, 4, at_experts, c.n), strided);
    weight_memory = c.weight(rank);
    weight = weight_memory;
    if (transposed) weight = weight.transposed(1, 2);  // given as (e,N,K), stored any way
    bias = c.bias(rank);
    shared_x = c.rows(rank, 5, tokens, c.n);
    shared_weight = c.rows(0, 6, c.n, c.k + 2);
    dshared_y = c.rows(rank, 7, tokens, c.k + 2);
    shared_view = shared_weight;
    if (transposed) shared_view = shared_view.transposed(0, 1);
    send = c.out_counts(rank);
    recv = c.arrive_counts(rank);
  }

  void add(TensorView& view, Tensor tensor, bool spread) {
    view = tensor;
    if (spread) tensor = spread_out(tensor, view);
    hold.push_back(tensor);
  }

  AllToAllVGmmOptions options(bool fused) const {
    AllToAllVGmmOptions o;
    if (has_bias) o.bias = bias;
    if (has_shared) {
      o.shared_x = shared_x;
      o.shared_weight = shared_view;
    }
    o.trans_weight = o.trans_shared_weight = transposed;
    o.fused = fused;
    return o;
  }

  bool has_bias, has_shared, transposed, strided, accumulate;
  std::vector<Tensor> hold;
  TensorView x_home, x_experts, dy_home, dy_experts;
  Tensor weight_memory, bias, shared_x, shared_weight, dshared_y;
  ConstTensorView weight, shared_view;
  std::vector<int64_t> send, recv;
};

/// Room for gradients; all elements hold `value` where they are added to.
struct Gradients {
  Gradients(const RankInputs& in, DType dtype) : type(in.accumulate ? DType::f32 : dtype) {
    weight = make_tensor(type, {in.weight.shape[0], in.weight.shape[1], in.weight.shape[2]});
    bias = make_tensor(type, {in.bias.view.shape[0], in.bias.view.shape[1]});
    shared_weight = make_tensor(type, {in.shared_view.shape[0], in.shared_view.shape[1]});
    for (const Tensor* t : {&weight, &bias, &shared_weight}) {
      for (int64_t i = 0; in.accumulate && i < t->view.num_elements(); ++i) set(*t, i, static_cast<double>(i % 17) / 8);
    }
    views = {.weight = weight, .bias = bias, .shared_weight = {}, .accumulate = in.accumulate};
    if (in.has_shared) views.shared_weight = shared_weight;
  }
  DType type;
  Tensor weight, bias, shared_weight;
  AllToAllVGmmGradients views;
};

using Results = std::vector<Tensor>;

Result<Results> results_of(Result<AllToAllVGmmResult> result) {
  if (!result.ok()) return result.status();
  return Results{copy_of(result->y), copy_of(result->shared_y), copy_of(result->permuted)};
}

Result<Results> dispatch(const Context& context, Group& group, const RankInputs& in, bool fused) {
  AllToAllVGmmOptions options = in.options(fused);
  options.return_permuted = in.strided;
  return results_of(alltoallv_grouped_matmul(context, group, in.x_home, in.weight, in.send, in.recv, options));
}

Result<Results> combine(const Context& context, Group& group, const RankInputs& in, bool fused) {
  return results_of(grouped_matmul_alltoallv(context, group, in.x_experts, in.weight, in.recv, in.send, in.options(fused)));
}

template <typename Backward>
Result<Results> gradients_of(const RankInputs& in, bool fused, const TensorView& dy, Backward backward) {
  const Gradients gradients(in, dy.dtype);
  AllToAllVGmmUpstream upstream{.dy = dy};
  if (in.has_shared) upstream.dshared_y = in.dshared_y;
  PLAIT_ASSIGN_OR_RETURN(const AllToAllVGmmInputGradients d, backward(upstream, gradients.views, in.options(fused)));
  return Results{copy_of(d.dx), copy_of(d.dshared_x), gradients.weight, gradients.bias, gradients.shared_weight};
}

Result<Results> dispatch_backward(const Context& context, Group& group, const RankInputs& in, bool fused) {
  return gradients_of(in, fused, in.dy_experts, [&](const auto& upstream, const auto& to, const auto& options) {
    return alltoallv_grouped_matmul_backward(context, group, upstream, in.x_experts, in.weight, in.send, in.recv, to, options);
  });
}

Result<Results> combine_backward(const Context& context, Group& group, const RankInputs& in, bool fused) {
  return gradients_of(in, fused, in.dy_home, [&](const auto& upstream, const auto& to, const auto& options) {
    return grouped_matmul_alltoallv_backward(context, group, upstream, in.x_experts, in.weight, in.recv, in.send, to, options);
  });
}

/// A fused operator and the sequence of unfused ones that it replaces: one function, told which.
struct FusedOperator {
  const char* name;
  Result<Results> (*run)(const Context& context, Group& group, const RankInputs& in, bool fused);
};
constexpr FusedOperator operators[] = {{"alltoallv_grouped_matmul", dispatch},
                                       {"grouped_matmul_alltoallv", combine},
                                       {"alltoallv_grouped_matmul_backward", dispatch_backward},
                                       {"grouped_matmul_alltoallv_backward", combine_backward}};

/// What crossed between ranks since the counters were read last.
class Traffic {
 public:
  explicit Traffic(const Recorder& recorder) : recorder_(recorder), before_(read()) {}
  std::string since() {
    const std::vector<int64_t> now = read();
    std::string text;
    for (size_t i = 0; i < now.size(); ++i) text += fmt::format("{} {}, ", name(counters[i]), now[i] - before_[i]);
    before_ = now;
    return text;
  }

 private:
  static constexpr Counter counters[] = {Counter::rows_sent, Counter::rows_received, Counter::bytes_sent, Counter::bytes_received};
  std::vector<int64_t> read() const {
    std::vector<int64_t> values;
    for (const Counter counter : counters) values.push_back(recorder_.value(counter));
    return values;
  }
  const Recorder& recorder_;
  std::vector<int64_t> before_;
};

Status compare_all(const Context& context, Group& group, const PairCase& c) {
  const RankInputs in(c, group.rank());
  Traffic traffic(context.recorder());
  for (const FusedOperator& op : operators) {
    PLAIT_ASSIGN_OR_RETURN(const Results fused, op.run(context, group, in, true));
    const std::string fused_traffic = traffic.since();
    PLAIT_ASSIGN_OR_RETURN(const Results unfused, op.run(context, group, in, false));
    const std::string unfused_traffic = traffic.since();
    if (fused_traffic != unfused_traffic) {
      return Status::internal(fmt::format("{}: fused {}unfused {}", op.name, fused_traffic, unfused_traffic));
    }
    for (size_t i = 0; i < fused.size(); ++i) {
      if (fused[i].defined() != unfused[i].defined()) return Status::internal(fmt::format("{}: result {} is there once only", op.name, i));
      const std::string difference = bit_difference(fused[i], unfused[i]);
      if (!difference.empty()) return Status::internal(fmt::format("{}, result {}: {}", op.name, i, difference));
    }
  }
  return {};
}

bool full() {
  const char* value = std::getenv("PLAIT_TEST_FULL");
  return value != nullptr && std::string(value) == "1";
}

constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};
constexpr int thread_counts[] = {1, 2, 5};
constexpr TileShape tiles[] = {{}, {1, 1}, {3, 64}, {50, 128}};

PairCase case_of(int num_ranks, int64_t experts, Load load, DType dtype, uint64_t seed) {
  Random random(seed);
  PairCase c{.num_ranks = num_ranks, .experts = experts, .dtype = dtype, .load = load, .seed = seed};
  c.k = 1 + random.below(21);
  c.n = 1 + random.below(37);
  c.fill_counts(experts > 5 ? 2 : 9);
  return c;
}

void expect_equal(const PairCase& c, const PairRun& run) {
  EXPECT_EQ(run_pair(c, run, [&](const Context& context, Group& group) { return compare_all(context, group, c); }), "")
      << c.to_string() << ", " << run.threads << " threads, delays " << run.delay_seed << ", tile " << run.tile.rows << " x " << run.tile.columns;
}

class FusedPair : public ::testing::TestWithParam<int> {};

/// Types, threads and delays take turns over the product of ranks, experts and loads; in the full run each meets each.
TEST_P(FusedPair, EqualsItsUnfusedSequence) {
  uint64_t seed = static_cast<uint64_t>(GetParam()) * 1000;
  for (const int64_t experts : {1, 2, 5, 32, 64}) {
    if (experts == 64 && !full()) continue;
    for (const Load load : all_loads) {
      for (int turn = 0; turn < (full() ? 18 : 1); ++turn) {
        const uint64_t pick = full() ? static_cast<uint64_t>(turn) : ++seed * 7 % 18;
        const PairCase c = case_of(GetParam(), experts, load, types[pick % 3], ++seed);
        expect_equal(c, {.threads = thread_counts[pick / 3 % 3], .delay_seed = pick / 9 == 0 ? 0 : seed, .tile = tiles[seed / 2 % 4]});
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, FusedPair, ::testing::Values(1, 2, 3, 4, 7, 8));

/// Blocks that are cut, several tiles of columns, several tasks of a gradient.
TEST(FusedPairSizes, RowsOfManyTiles) {
  for (const DType dtype : types) {
    PairCase c{.num_ranks = 3, .experts = 2, .k = 130, .n = 150, .dtype = dtype, .load = Load::uneven, .seed = 77};
    c.fill_counts(250);
    for (const int threads : thread_counts) expect_equal(c, {.threads = threads});
  }
}

TEST(FusedPairSizes, ManyOrdersOfArrival) {
  PairCase c{.num_ranks = 4, .experts = 3, .k = 9, .n = 11, .dtype = DType::bf16, .load = Load::uneven, .seed = 31};
  c.fill_counts(40);
  const uint64_t orders = full() ? 200 : 20;
  for (uint64_t order = 1; order <= orders; ++order) expect_equal(c, {.threads = 2, .delay_seed = order, .tile = tiles[order % 4]});
}

TEST(FusedPairProcesses, EqualsItsUnfusedSequence) {
  for (const int num_ranks : {1, 2, 4}) {
    const PairCase c = case_of(num_ranks, 3, Load::uneven, DType::bf16, static_cast<uint64_t>(40 + num_ranks));
    expect_equal(c, {.engine = Engine::shm, .threads = 2});
  }
  expect_equal(case_of(3, 2, Load::empty_rank, DType::f32, 51), {.engine = Engine::shm, .threads = 1});
}

}  // namespace
}  // namespace plait::test
