// A rank that makes another call, comes late, never comes, or throws: in forward and in backward, on threads and among processes, all
// ranks return an error that names it, and a new group works in the same processes.

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "base/status_macros.h"
#include "failure_support.h"
#include "plait/counters.h"
#include "routing/signature.h"
#include "routing/window_buffer.h"
#include "support/processes.h"

namespace plait::test {
namespace {

constexpr int num_ranks = 3;

class LayerFailure : public testing::TestWithParam<std::tuple<Engine, Dispatcher>> {
 protected:
  static Engine engine() { return std::get<0>(GetParam()); }
  static Dispatcher dispatcher() { return std::get<1>(GetParam()); }
  /// Whether ranks wait for each other inside the call by counters.
  static bool is_fused() { return dispatcher() != Dispatcher::alltoall; }

  KnownLayer layer_{dispatcher()};
};
INSTANTIATE_TEST_SUITE_P(Ways, LayerFailure,
                         testing::Combine(testing::Values(Engine::threads, Engine::shm), testing::ValuesIn(waiting_dispatchers())),
                         [](const auto& param_info) {
                           return std::string(name(std::get<0>(param_info.param))) + "_" + std::string(name(std::get<1>(param_info.param)));
                         });

/// A matrix with the same sums in every row and column: two ranks' rows for two experts of one owner, exchanged.
CountsMatrix with_equal_totals(const CountsMatrix& counts, int owner, int one, int other) {
  CountsMatrix changed = counts;
  const ExpertPlacement& place = counts.placement;
  auto at = [&](int source, int64_t expert) -> int64_t& { return changed.counts[static_cast<size_t>(source * place.num_experts + expert)]; };
  for (int64_t a = place.global(owner, 0); a < place.global(owner, place.experts_per_rank()); ++a) {
    for (int64_t b = place.global(owner, 0); b < place.global(owner, place.experts_per_rank()); ++b) {
      if (a == b || counts.at(one, b) == 0 || counts.at(other, a) == 0) continue;
      ++at(one, a), --at(one, b), --at(other, a), ++at(other, b);
      return changed;
    }
  }
  ADD_FAILURE() << "no rows to exchange";
  return changed;
}

TEST_P(LayerFailure, CountsThatDisagreeAlthoughAllTotalsAgree) {
  const std::vector<Status> statuses = fail_then_work(engine(), num_ranks, 60, layer_, [&](const Context& context, Group& group) -> Status {
    RankResult result;
    PLAIT_ASSIGN_OR_RETURN(LayerState state, layer_.forward(context, group, result));
    if (group.rank() == 1) state.plan = RoutingPlan(with_equal_totals(state.plan.counts(), 1, 0, 2), 1);
    return layer_.backward(context, group, state, result);
  });
  for (const Status& status : statuses) {
    expect_error(status, {StatusCode::invalid_argument, 0, "exchange_counts", {"rank 0 sends", "to rank 1, which expects"}, true}, "counts");
  }
}

TEST_P(LayerFailure, AnotherOperator) {
  auto run = [&](const std::function<Status(const Context&, Group&, const LayerState&, const RankResult&)>& odd, const ExpectedError& expected) {
    const std::vector<Status> statuses = fail_then_work(engine(), num_ranks, 60, layer_, [&](const Context& context, Group& group) -> Status {
      RankResult result;
      PLAIT_ASSIGN_OR_RETURN(const LayerState state, layer_.forward(context, group, result));
      return group.rank() == 2 ? odd(context, group, state, result) : layer_.forward(context, group, result).status();
    });
    for (const Status& status : statuses) expect_error(status, expected, "another operator");
  };
  run([&](const Context& context, Group& group, const LayerState& state, const RankResult& r) { return layer_.backward(context, group, state, r); },
      {StatusCode::invalid_argument, 2, "exchange_counts", {"operation", "moe_forward", "moe_backward"}});
  run([](const Context&, Group& group, const LayerState&, const RankResult&) { return group.barrier("step"); },
      {StatusCode::invalid_argument, 2, "step", {"barrier 'step'", "exchange 'exchange_counts'"}});
}

/// A rank whose own arguments are in order, but not those of the others.
TEST_P(LayerFailure, AnotherConfiguration) {
  struct Case {
    std::string words;
    std::function<void(LayerConfig&)> usual, odd;
  };
  const std::vector<Case> cases = {
      {"dispatcher", {}, [](LayerConfig& c) { c.dispatcher = Dispatcher::eager; }},
      {"element type", {}, [](LayerConfig& c) { c.dtype = DType::bf16; }},
      {"element type", [](LayerConfig& c) { c.dtype = DType::bf16; }, [](LayerConfig& c) { c.dtype = DType::f16; }},
      {"element type", [](LayerConfig& c) { c.hidden = 10; }, [](LayerConfig& c) { c.dtype = DType::bf16, c.hidden = 20; }},
      {"intermediate size", {}, [](LayerConfig& c) { c.intermediate = 5; }},
      {"hidden size", {}, [](LayerConfig& c) { c.hidden = 20; }},
  };
  for (const Case& c : cases) {
    LayerConfig usual = layer_.inputs().config;
    if (c.usual) c.usual(usual);
    LayerConfig odd = usual;
    c.odd(odd);
    const LayerInputs usual_in = make_inputs(usual, {.tokens = 6}), odd_in = make_inputs(odd, {.tokens = 6});
    const std::vector<Status> statuses = fail_then_work(engine(), num_ranks, 60, layer_, [&](const Context& context, Group& group) {
      RankResult result;
      return run_rank(context, group, group.rank() == 1 ? odd_in : usual_in, {2, 2, 2}, result);
    });
    for (const Status& status : statuses) {
      expect_error(status, {StatusCode::invalid_argument, 1, "exchange_counts", {c.words, "rank 1 has", "rank 0 has"}}, c.words);
    }
  }
}

/// Changes what the rank says about its calls of one operation, which this build's own configurations cannot all say.
class LyingGroup final : public comm::GroupDecorator {
 public:
  using Lie = std::function<void(SignatureBlock&)>;
  LyingGroup(Group& inner, std::string operation, Lie lie) : GroupDecorator(inner), operation_(std::move(operation)), lie_(std::move(lie)) {}

  Result<Exchange> exchange(std::string_view stage, std::span<const std::byte> payload, std::span<const Region> regions) override {
    std::vector<std::byte> said(payload.begin(), payload.end());
    SignatureBlock block;
    if (said.size() >= sizeof(block)) {
      std::memcpy(&block, said.data(), sizeof(block));
      if (block.operation.data() == operation_) lie_(block);
      std::memcpy(said.data(), &block, sizeof(block));
    }
    return GroupDecorator::exchange(stage, said, regions);
  }

 private:
  std::string operation_;
  Lie lie_;
};

TEST_P(LayerFailure, AnotherSignatureInForwardAndInBackward) {
  const std::vector<std::pair<std::string, LyingGroup::Lie>> lies = {
      {"inside the bit contract: rank 1 has no, rank 0 has yes", [](SignatureBlock& block) { block.in_contract = 0; }},
      {"detail: rank 1 has", [](SignatureBlock& block) { ++block.detail_hash; }},
      {"element type: rank 1 has bf16", [](SignatureBlock& block) { block.dtype = static_cast<int64_t>(DType::bf16); }},
      {"dispatcher: rank 1 has other", [](SignatureBlock& block) { std::strcpy(block.dispatcher.data(), "other"); }},
  };
  for (const std::string operation : {"moe_forward", "moe_backward"}) {
    for (const auto& item : lies) {
      const std::string& words = item.first;
      const LyingGroup::Lie& lie = item.second;
      const std::vector<Status> statuses = fail_then_work(engine(), num_ranks, 60, layer_, [&](const Context& context, Group& group) {
        LyingGroup lying(
            group, operation, group.rank() == 1 ? lie : [](SignatureBlock&) {});
        return layer_.step(context, lying);
      });
      for (const Status& status : statuses) expect_error(status, {StatusCode::invalid_argument, 1, "exchange_counts", {words}}, operation);
    }
  }
}

struct Point {
  std::string what;
  StallPoint where;
  ExpectedError error;
};

std::vector<Point> points(bool fused) {
  using Kind = GroupCall::Kind;
  const StatusCode code = StatusCode::timeout;
  if (!fused) {
    return {{"forward", {Kind::exchange, -1, 1}, {code, 2, "exchange_counts", {"rank 2 did not reach"}}},
            {"combine", {Kind::exchange, -1, 2}, {code, 2, "combine", {"rank 2 did not reach"}}},
            {"backward", {Kind::exchange, -1, 3}, {code, 2, "exchange_counts", {"rank 2 did not reach"}}},
            {"backward dispatch", {Kind::exchange, -1, 4}, {code, 2, "backward_dispatch", {"rank 2 did not reach"}}}};
  }
  const std::vector<std::string> rows = {"rank 2 did not reach", "wait", "for rank 2, the first of expert "};
  const std::vector<std::string> results = {"rank 2 did not reach", "to experts of rank 2, the first to expert "};
  return {{"forward", {Kind::exchange, -1, 1}, {code, 2, "exchange_counts", {"rank 2 did not reach"}}},
          {"rows", {Kind::signal, rows_there, 1}, {code, 2, "dispatch", rows, true}},
          {"results", {Kind::signal, results_there, 1}, {code, 2, "combine", results, true}},
          {"backward", {Kind::exchange, -1, 2}, {code, 2, "exchange_counts", {"rank 2 did not reach"}}},
          {"dy rows", {Kind::signal, rows_there, 2}, {code, 2, "backward_combine", rows, true}},
          {"dx rows", {Kind::signal, results_there, 2}, {code, 2, "backward_dispatch", results, true}}};
}

TEST_P(LayerFailure, ARankThatComesTooLate) {
  for (const Point& point : points(is_fused())) {
    const std::vector<Status> statuses = stall_at(engine(), layer_, point.where);
    for (int rank = 0; rank < num_ranks; ++rank) {
      ExpectedError expected = point.error;
      if (rank == 2) expected = {point.error.code, 2, point.error.stage, {"rank 2 did not reach"}};  // it waits for no one
      expect_error(statuses[static_cast<size_t>(rank)], expected, point.what);
    }
  }
}

TEST_P(LayerFailure, ARankThatDoesNotCallAtAll) {
  for (const bool in_backward : {false, true}) {
    const std::vector<Status> statuses = fail_then_work(engine(), num_ranks, 60, layer_, [&](const Context& context, Group& group) -> Status {
      RankResult result;
      PLAIT_ASSIGN_OR_RETURN(const LayerState state, layer_.forward(context, group, result));
      if (group.rank() == 0) return {};
      return in_backward ? layer_.backward(context, group, state, result) : layer_.forward(context, group, result).status();
    });
    EXPECT_TRUE(statuses[0].ok()) << statuses[0].to_string();
    for (int rank = 1; rank < num_ranks; ++rank) {
      expect_error(statuses[static_cast<size_t>(rank)], {StatusCode::peer_lost, 0, "exchange_counts", {"rank 0 left the group"}}, "leaves");
    }
  }
}

TEST_P(LayerFailure, AnExceptionOnOneRank) {
  const std::vector<Status> statuses = fail_then_work(engine(), num_ranks, 60, layer_, [&](const Context& context, Group& group) -> Status {
    RankResult result;
    PLAIT_ASSIGN_OR_RETURN(const LayerState state, layer_.forward(context, group, result));
    if (group.rank() == 1) throw std::runtime_error("no such batch");
    return layer_.backward(context, group, state, result);
  });
  for (const Status& status : statuses) {
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.rank(), 1) << status.to_string();
  }
  for (const Status& status : {statuses[0], statuses[2]}) EXPECT_NE(status.stage(), "") << status.to_string();  // whatever they were at
  const std::string reason = engine() == Engine::threads ? "rank 1 threw: no such batch" : "rank 1 left the group";
  EXPECT_NE(statuses[0].message().find(reason), std::string::npos) << statuses[0].to_string();
}

/// Rank 0 has all its rows and need not wait: it must notice the failure between tiles.
TEST_P(LayerFailure, AFailureIsNoticedWhileThereAreTilesToRun) {
  if (!is_fused()) return;
  LayerInputs in = make_inputs(layer_.inputs().config, {.tokens = 4, .given_routing = true});
  for (int64_t i = 0; i < in.ids.view.num_elements(); ++i) set(in.ids, i, static_cast<double>(i % 4));  // experts of rank 0
  const TokenSplit split = {4, 0, 0};
  const SharedCounter begun;
  const std::vector<Status> statuses = fail_then_work(engine(), num_ranks, 60, layer_, [&](const Context& context, Group& group) -> Status {
    HookedGroup hooked(group, [&](Group& inner, const GroupCall& call) {
      if (inner.rank() == 0 && begun.value() == 0 && call.kind == GroupCall::Kind::poll && inner.signal_value(0, rows_there) == 1) {
        begun.add();
        stall(inner);
        pause_us(200'000);  // work of which a peer's failure must not wait for the end
      }
      if (inner.rank() == 1 && call.kind == GroupCall::Kind::wait && call.channel == results_there) {
        begun.wait_for(1);
        inner.abort(Status::internal("lost its input"));
      }
    });
    RankResult result;
    const Status status = run_rank(context, hooked, in, split, result);
    const int64_t num_tiles = context.recorder().value(Counter::tiles);  // of 12: three for each of its experts
    return group.rank() == 0 && num_tiles > 2 ? Status::internal("ran on for " + std::to_string(num_tiles) + " tiles") : status;
  });
  for (const Status& status : statuses) EXPECT_EQ(status.rank(), 1) << status.to_string();
  EXPECT_EQ(statuses[0].stage(), "dispatch") << statuses[0].to_string();
  EXPECT_NE(statuses[0].message().find("lost its input"), std::string::npos) << statuses[0].to_string();
}

}  // namespace
}  // namespace plait::test
