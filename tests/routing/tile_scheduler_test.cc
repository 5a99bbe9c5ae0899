#include "routing/tile_scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/group_decorator.h"
#include "support/test_tensors.h"

namespace plait {
namespace {

constexpr Arrival arrival{3, 7, Stage::dispatch};

/// Rank 0 of four, whose peers do what the test says: a peer's rows are there once it is marked, or once this rank has waited for it.
class ScriptedGroup final : public comm::GroupDecorator {
 public:
  explicit ScriptedGroup(Group& inner) : GroupDecorator(inner) {}
  int rank() const override { return 0; }
  int size() const override { return 4; }
  uint64_t signal_value(int peer, int channel) const override {
    EXPECT_EQ(channel, arrival.channel);
    return peer == 0 || there_[static_cast<size_t>(peer)].load() ? arrival.value : arrival.value - 1;
  }
  Status wait(int peer, int, uint64_t, std::string_view) override {
    if (peer == 0) return {};
    waited.push_back(peer);
    if (peer == dead) return Status::peer_lost("rank is gone").at_rank(peer);
    mark(peer);
    return {};
  }
  void mark(int peer) { there_[static_cast<size_t>(peer)] = true; }

  std::vector<int> waited;  ///< by the calling thread only
  int dead = -1;

 private:
  std::array<std::atomic<bool>, 4> there_{};
};

class TileSchedulerTest : public ::testing::TestWithParam<int> {
 protected:
  std::unique_ptr<Context> context = Context::create({.threads = GetParam(), .kernel = ""}).take();
  std::vector<std::unique_ptr<Group>> alone = make_thread_groups(1).take();
  ScriptedGroup group{*alone[0]};
  TileScheduler scheduler;

  struct Tile {
    int chain, step, tile, worker;
  };
  std::mutex mutex;
  std::vector<Tile> ran;  ///< in the order of their ends
  int num_chains = 0;

  /// Returns the chain's number: 0, 1, ...
  int add(TileChain chain) {
    const int number = num_chains++;
    scheduler.add(std::move(chain), [this, number](const TileScheduler::TileAt& at) {
      std::lock_guard lock(mutex);
      ran.push_back({number, at.step, at.tile, at.worker});
    });
    return number;
  }
  Status run() { return scheduler.run(*context, group, arrival); }
  /// Position in `ran` of the first and last tile of a chain's step; -1 where it ran none.
  int first(int chain, int step = 0) const {
    for (size_t i = 0; i < ran.size(); ++i) {
      if (ran[i].chain == chain && ran[i].step == step) return static_cast<int>(i);
    }
    return -1;
  }
  int last(int chain, int step = 0) const {
    for (size_t i = ran.size(); i-- > 0;) {
      if (ran[i].chain == chain && ran[i].step == step) return static_cast<int>(i);
    }
    return -1;
  }
};

TileChain chain_with(std::initializer_list<int64_t> tiles, std::vector<int32_t> sources = {}) {
  TileChain chain;
  for (int64_t n : tiles) chain.add_step(Stage::gate_up, n);
  chain.sources = std::move(sources);
  return chain;
}

TEST_P(TileSchedulerTest, EveryTileOnceAndStagesInOrder) {
  test::Random random(4);
  std::vector<TileChain> chains;
  for (int i = 0; i < 60; ++i) {
    TileChain chain = chain_with({random.below(5), random.below(4), random.below(7)}, {static_cast<int32_t>(random.below(4))});
    chain.filler = i % 7 == 3;
    chains.push_back(chain);
    EXPECT_EQ(add(chain), i);
  }
  ASSERT_TRUE(run().ok());
  size_t num_tiles = 0;
  for (int c = 0; c < 60; ++c) {
    int previous_end = -1;
    for (int step = 0; step < 3; ++step) {
      const int32_t tiles = chains[static_cast<size_t>(c)].steps[static_cast<size_t>(step)].num_tiles;
      std::vector<int> times(static_cast<size_t>(tiles), 0);
      for (const auto& at : ran) {
        if (at.chain == c && at.step == step) ++times[static_cast<size_t>(at.tile)];
      }
      EXPECT_EQ(std::count(times.begin(), times.end(), 1), tiles) << c << " step " << step;
      if (tiles == 0) continue;
      EXPECT_GT(first(c, step), previous_end);
      previous_end = last(c, step);
      num_tiles += static_cast<size_t>(tiles);
    }
  }
  EXPECT_EQ(ran.size(), num_tiles);
  for (const auto& at : ran) EXPECT_TRUE(at.worker >= 0 && at.worker < GetParam());
}

/// The first tile of a stage ends long after the last one, where another worker can run that.
TEST_P(TileSchedulerTest, AStageBeginsWhenTheOneBeforeHasEnded) {
  std::atomic<int> done = 0;
  std::atomic<bool> last_done = false, early = false;
  scheduler.add(chain_with({4, 0, 3}), [&](const TileScheduler::TileAt& at) {
    if (at.step == 2) early = early || done != 4;
    if (at.step != 0) return;
    if (at.tile == 0 && GetParam() > 1) {
      while (!last_done) std::this_thread::yield();
      for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    }
    ++done;
    if (at.tile == 3) last_done = true;
  });
  EXPECT_TRUE(run().ok());
  EXPECT_FALSE(early);
}

TEST_P(TileSchedulerTest, ChainsWithoutTilesEnd) {
  int opened = 0;
  const int gate = scheduler.add_gate([&] {
    ++opened;
    return Status();
  });
  for (int i = 0; i < 5; ++i) {
    TileChain chain = chain_with({0, 0});
    chain.leads[0] = {gate, 1};
    add(chain);
  }
  TileChain filler = chain_with({0});
  filler.filler = true;
  add(filler);
  EXPECT_TRUE(run().ok());
  EXPECT_TRUE(ran.empty());
  EXPECT_EQ(opened, 1);
  TileScheduler nothing;
  EXPECT_TRUE(nothing.run(*context, group, arrival).ok());
}

TEST_P(TileSchedulerTest, AGateOpensOnceWhenAllItsStagesAreDone) {
  std::atomic<int> opened = 0, at_once = 0;
  int ran_before = 0;
  const int gate = scheduler.add_gate([&] {
    ++opened;
    std::lock_guard lock(mutex);
    for (const auto& at : ran) ran_before += at.chain < 2 && at.step == 0 ? 1 : 0;
    return Status();
  });
  scheduler.add_gate([&] {
    ++at_once;
    return Status();
  });
  TileChain behind = chain_with({2});
  behind.behind = gate;
  for (int i = 0; i < 2; ++i) {
    TileChain leading = chain_with({3, 2});
    leading.leads[1] = {gate, 0};
    add(leading);
  }
  const int follower = add(behind);
  ASSERT_TRUE(run().ok());
  EXPECT_EQ(opened, 1);
  EXPECT_EQ(at_once, 1);
  EXPECT_EQ(ran_before, 6);
  EXPECT_GT(first(follower), std::max(last(0, 0), last(1, 0)));
}

TEST_P(TileSchedulerTest, FillersRunWhereNothingElseCan) {
  TileChain filler = chain_with({3});
  filler.filler = true;
  const int first_added = add(filler);
  const int own = add(chain_with({3}));
  const int late = add(chain_with({3}, {2}));
  ASSERT_TRUE(run().ok());
  EXPECT_EQ(group.waited, std::vector<int>{2});
  EXPECT_LT(first(first_added), first(late)) << "before the wait";
  if (GetParam() == 1) {
    EXPECT_GT(first(first_added), last(own)) << "after what can run";
  }
}

/// Rows that come while a filler is under way are not kept waiting until its end.
TEST_P(TileSchedulerTest, AFillerGivesWayBetweenTiles) {
  std::atomic<int> fillers_before = 0, fillers_done = 0;
  TileChain filler = chain_with({200});
  filler.filler = true;
  scheduler.add(std::move(filler), [&](const TileScheduler::TileAt&) {
    if (++fillers_done == 3) group.mark(1);
  });
  scheduler.add(chain_with({1}, {1}), [&](const TileScheduler::TileAt&) { fillers_before = fillers_done.load(); });
  EXPECT_TRUE(run().ok());
  EXPECT_EQ(fillers_done, 200);
  EXPECT_GE(fillers_before, 3);
  if (GetParam() == 1) {
    EXPECT_EQ(fillers_before, 3);
  }
  EXPECT_TRUE(group.waited.empty());
}

/// What may be left out is left out once its gate is open; begun before, the gate waits for it.
TEST_P(TileSchedulerTest, OptionalChainsOnlyFillAWait) {
  for (const bool late : {false, true}) {
    TileScheduler local;
    ScriptedGroup peers(*alone[0]);
    std::atomic<int> optional_tiles = 0, order = 0, optional_end = -1, whole_begin = -1;
    const int gate = local.add_gate();
    TileChain leading = chain_with({2}, late ? std::vector<int32_t>{1} : std::vector<int32_t>{});
    leading.leads[0] = {gate, 0};
    local.add(std::move(leading), [](const TileScheduler::TileAt&) {});
    TileChain whole = chain_with({1});
    whole.behind = gate;
    whole.filler = true;
    local.add(std::move(whole), [&](const TileScheduler::TileAt&) { whole_begin = order++; });
    TileChain optional = chain_with({3});
    optional.filler = true;
    optional.until = gate;
    local.add(std::move(optional), [&](const TileScheduler::TileAt&) {
      peers.mark(1);
      if (++optional_tiles == 3) optional_end = order++;
    });
    ASSERT_TRUE(local.run(*context, peers, arrival).ok());
    EXPECT_GE(whole_begin, 0);
    if (late) {
      EXPECT_EQ(optional_tiles, 3);
      EXPECT_GT(whole_begin, optional_end);
    } else if (GetParam() == 1) {
      EXPECT_EQ(optional_tiles, 0);
    } else {
      EXPECT_TRUE(optional_tiles == 0 || (optional_tiles == 3 && whole_begin > optional_end)) << optional_tiles;
    }
  }
}

/// A profiler is told of the calling thread's tiles, one after the other.
TEST_P(TileSchedulerTest, AProfilerSeesTheTilesOfTheCallingThread) {
  struct Counting final : ZoneObserver {
    void begin(Stage stage) override {
      EXPECT_EQ(stage, Stage::gate_up);
      EXPECT_EQ(std::this_thread::get_id(), thread);
      EXPECT_EQ(begun++, ended);
    }
    void end(Stage) override { EXPECT_EQ(++ended, begun); }
    std::thread::id thread = std::this_thread::get_id();
    int begun = 0, ended = 0;
  } observer;
  context->recorder().observer = &observer;
  for (int i = 0; i < 4; ++i) add(chain_with({5, 3}));
  ASSERT_TRUE(run().ok());
  EXPECT_EQ(ran.size(), 32U);
  const auto own = std::count_if(ran.begin(), ran.end(), [](const Tile& tile) { return tile.worker == 0; });
  EXPECT_EQ(observer.ended, own);
}

TEST_P(TileSchedulerTest, LateRowsDoNotHoldUpOthers) {
  group.mark(3);
  add(chain_with({2}, {1, 2}));
  add(chain_with({2}, {0, 3}));
  add(chain_with({2}, {2}));
  ASSERT_TRUE(run().ok());
  EXPECT_EQ(ran.size(), 6U);
  EXPECT_LT(last(1), std::min(first(0), first(2)));
  EXPECT_EQ(group.waited, (std::vector<int>{1, 2}));
  EXPECT_EQ(context->recorder().value(Counter::chains_late), 2);
  EXPECT_EQ(context->recorder().value(Counter::tiles), 6);
}

TEST_P(TileSchedulerTest, RowsThatComeWhileOthersRunNeedNoWait) {
  for (int i = 0; i < 4; ++i) scheduler.add(chain_with({5}), [&](const TileScheduler::TileAt&) { group.mark(1); });
  add(chain_with({1}, {1}));
  EXPECT_TRUE(run().ok());
  EXPECT_TRUE(group.waited.empty());
}

TEST_P(TileSchedulerTest, AnErrorOfTheWaitEndsTheRun) {
  group.dead = 2;
  add(chain_with({2}));
  TileChain waiting = chain_with({2}, {2});
  waiting.expert = 11;
  waiting.row_end = 40;
  const int never = add(waiting);
  const Status status = run();
  EXPECT_EQ(status.code(), StatusCode::peer_lost);
  EXPECT_EQ(status.rank(), 2);
  EXPECT_EQ(status.expert(), 11);
  EXPECT_EQ(first(never), -1);
  EXPECT_NE(scheduler.describe_unfinished().find("expert 11 rows 0-40 gate_up: waits for rows of rank 2"), std::string::npos)
      << scheduler.describe_unfinished();
}

TEST_P(TileSchedulerTest, AnErrorOfAGateEndsTheRun) {
  const int gate = scheduler.add_gate([] { return Status::aborted("no more"); });
  TileChain leading = chain_with({1});
  leading.leads[0] = {gate, 0};
  add(leading);
  TileChain behind = chain_with({100});
  behind.behind = gate;
  add(behind);
  EXPECT_EQ(run().message(), "no more");
  EXPECT_EQ(ran.size(), 1U);
}

TEST_P(TileSchedulerTest, ChainsThatWaitForEachOtherAreADefect) {
  const int gate = scheduler.add_gate();
  TileChain circle = chain_with({1});
  circle.behind = gate;
  circle.leads[0] = {gate, 0};
  add(circle);
  EXPECT_EQ(run().code(), StatusCode::internal);
  EXPECT_TRUE(ran.empty());
}

INSTANTIATE_TEST_SUITE_P(Threads, TileSchedulerTest, ::testing::Values(1, 2, 5));

}  // namespace
}  // namespace plait
