// Window regions: exact size, sharing, and their life from allocation to the last reader's release.

#include <cstring>
#include <thread>

#include "base/status_macros.h"
#include "engines.h"
#include "support/test_tensors.h"

namespace plait::test {
namespace {

using RegionTest = OnEngineAndSize;
INSTANTIATE_TEST_SUITE_P(Engines, RegionTest, testing::Combine(both_engines, testing::Values(1, 2, 4)), engine_size_test_name);
using RegionLifeTest = OnEngine;
INSTANTIATE_TEST_SUITE_P(Engines, RegionLifeTest, both_engines, engine_test_name);

void fill(const Region& region, int rank, int step) {
  for (int64_t i = 0; i < region.bytes(); ++i) region.data()[i] = origin(rank, step, i);
}

/// A region of `bytes` with this rank's data of `step`, published; the views of all ranks' regions.
Result<Exchange> share(Group& group, int64_t bytes, int step, Region& region) {
  PLAIT_ASSIGN_OR_RETURN(region, group.allocate(bytes));
  fill(region, group.rank(), step);
  return group.exchange("share", {}, {&region, 1});
}

Status check_view(const RegionView& view, int source, int step) {
  if (view.ref().rank != source) return wrong("the region of another rank");
  return check_origin(view.data(), static_cast<int64_t>(view.ref().bytes), source, step);
}

TEST_P(RegionTest, ExactSizesThatDoNotOverlap) {
  auto body = [](Group& group) -> Status {
    const std::vector<int64_t> sizes = {0, 1, 63, 64, 65, 4097, 1 << 20, 300'000, 7};
    std::vector<Region> regions;
    int64_t rounded = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      PLAIT_ASSIGN_OR_RETURN(Region region, group.allocate(sizes[i]));
      if (region.bytes() != sizes[i] || region.ref().bytes != static_cast<uint64_t>(sizes[i])) return wrong("size");
      if (region.data() == nullptr || reinterpret_cast<uintptr_t>(region.data()) % 64 != 0) return wrong("alignment");
      fill(region, group.rank(), static_cast<int>(i));
      regions.push_back(region);
      rounded += std::max<int64_t>(64, (sizes[i] + 63) / 64 * 64);
      if (group.window_bytes() != rounded) return wrong("window_bytes " + std::to_string(group.window_bytes()));
    }
    for (size_t i = 0; i < sizes.size(); ++i) PLAIT_RETURN_IF_ERROR(check_origin(regions[i].data(), sizes[i], group.rank(), static_cast<int>(i)));
    regions.clear();
    if (group.window_bytes() != 0 || group.peak_window_bytes() != rounded) return wrong("after the drop");
    group.reset_peak_window_bytes();
    return group.peak_window_bytes() == 0 ? group.barrier("end") : wrong("peak after reset");
  };
  EXPECT_EQ(first_error(run_engine(engine(), size(), {}, body)), "");
}

TEST_P(RegionTest, PeersReadAndWriteInPlace) {
  auto body = [](Group& group) -> Status {
    const int size = group.size();
    for (int step = 0; step < 20; ++step) {
      Region region;  // uneven sizes; one byte per rank at the end for what others write home
      PLAIT_ASSIGN_OR_RETURN(const Exchange exchange, share(group, 1000 * (group.rank() + 1) + 777 * step + size, step, region));
      for (int peer = 0; peer < size; ++peer) {
        const RegionView& view = exchange.regions[0][static_cast<size_t>(peer)];
        const auto payload = static_cast<int64_t>(view.ref().bytes) - size;
        PLAIT_RETURN_IF_ERROR(check_origin(view.data(), payload, peer, step));
        view.writable()[payload + group.rank()] = static_cast<std::byte>(group.rank() + 1);
      }
      PLAIT_RETURN_IF_ERROR(group.barrier("written"));
      for (int peer = 0; peer < size; ++peer) {
        if (region.data()[region.bytes() - size + peer] != static_cast<std::byte>(peer + 1)) return wrong("what a peer wrote home");
      }
      PLAIT_RETURN_IF_ERROR(group.barrier("seen"));
    }
    return {};
  };
  EXPECT_EQ(first_error(run_engine(engine(), size(), {}, body)), "");
}

TEST_P(RegionTest, SomeRanksPublishNothing) {
  auto body = [](Group& group) -> Status {
    for (int step = 0; step < 4; ++step) {
      Region region;
      if (group.rank() % 2 == step % 2) {
        PLAIT_ASSIGN_OR_RETURN(region, group.allocate(100 + step));
        fill(region, group.rank(), step);
      }
      PLAIT_ASSIGN_OR_RETURN(const Exchange exchange, group.exchange("some", {}, {&region, 1}));
      for (int peer = 0; peer < group.size(); ++peer) {
        const RegionView& view = exchange.regions[0][static_cast<size_t>(peer)];
        if ((view.data() != nullptr) != (peer % 2 == step % 2)) return wrong("who published");
        if (view.data() != nullptr) PLAIT_RETURN_IF_ERROR(check_view(view, peer, step));
      }
    }
    return group.barrier("end");
  };
  EXPECT_EQ(first_error(run_engine(engine(), size(), {}, body)), "");
}

TEST_P(RegionLifeTest, TwoForwardsBeforeABackward) {
  auto body = [](Group& group) -> Status {
    for (int repeat = 0; repeat < 50; ++repeat) {
      Region first;
      Region second;
      PLAIT_ASSIGN_OR_RETURN(Exchange one, share(group, 5000 + repeat, 2 * repeat, first));
      PLAIT_ASSIGN_OR_RETURN(Exchange two, share(group, 3000 + repeat, 2 * repeat + 1, second));
      for (int peer = 0; peer < group.size(); ++peer) {
        PLAIT_RETURN_IF_ERROR(check_view(two.regions[0][static_cast<size_t>(peer)], peer, 2 * repeat + 1));
        PLAIT_RETURN_IF_ERROR(check_view(one.regions[0][static_cast<size_t>(peer)], peer, 2 * repeat));
      }
      if (repeat % 3 == 0) std::swap(one, two);
    }
    PLAIT_RETURN_IF_ERROR(group.barrier("end"));
    return group.window_bytes() == 0 ? Status() : wrong("regions remain");
  };
  EXPECT_EQ(first_error(run_engine(GetParam(), 3, {}, body)), "");
}

TEST_P(RegionLifeTest, AReadersViewKeepsWhatItsOwnerDropped) {
  auto body = [](Group& group) -> Status {
    Region region;
    PLAIT_ASSIGN_OR_RETURN(Exchange kept, share(group, 10'000, 0, region));
    region = {};
    for (int step = 1; step < 40; ++step) {  // other regions come and go meanwhile, of the same size
      Region other;
      PLAIT_ASSIGN_OR_RETURN(const Exchange exchange, share(group, 10'000, step, other));
    }
    if (group.window_bytes() < 10'000) return wrong("the region is gone although views live");
    for (int peer = 0; peer < group.size(); ++peer) PLAIT_RETURN_IF_ERROR(check_view(kept.regions[0][static_cast<size_t>(peer)], peer, 0));
    kept = {};
    PLAIT_RETURN_IF_ERROR(group.barrier("released"));
    return group.window_bytes() == 0 ? Status() : wrong("regions remain");
  };
  EXPECT_EQ(first_error(run_engine(GetParam(), 3, {}, body)), "");
}

TEST_P(RegionLifeTest, PublishedTwiceLivesUntilBothViewsAreGone) {
  auto body = [](Group& group) -> Status {
    Region region;
    PLAIT_ASSIGN_OR_RETURN(Exchange one, share(group, 500, 0, region));
    PLAIT_ASSIGN_OR_RETURN(Exchange two, group.exchange("again", {}, {&region, 1}));
    region = {};
    one = {};
    PLAIT_RETURN_IF_ERROR(group.barrier("one"));
    if (group.window_bytes() == 0) return wrong("gone too early");
    for (int peer = 0; peer < group.size(); ++peer) PLAIT_RETURN_IF_ERROR(check_view(two.regions[0][static_cast<size_t>(peer)], peer, 0));
    two = {};
    PLAIT_RETURN_IF_ERROR(group.barrier("two"));
    return group.window_bytes() == 0 ? Status() : wrong("regions remain");
  };
  EXPECT_EQ(first_error(run_engine(GetParam(), 2, {}, body)), "");
}

TEST_P(RegionLifeTest, MoreReleasesThanOneExchangeCarries) {
  auto body = [](Group& group) -> Status {
    std::vector<Exchange> exchanges;
    for (int step = 0; step < 300; ++step) {
      Region region;
      PLAIT_ASSIGN_OR_RETURN(Exchange exchange, share(group, 64, step, region));
      exchanges.push_back(std::move(exchange));
    }
    if (group.window_bytes() != 300 * 64) return wrong("window_bytes");
    exchanges.clear();
    int barriers = 0;
    for (; group.window_bytes() > 0 && barriers < 100; ++barriers) PLAIT_RETURN_IF_ERROR(group.barrier("drain"));
    for (int peer_barriers = barriers; peer_barriers < 100; ++peer_barriers) PLAIT_RETURN_IF_ERROR(group.barrier("drain"));
    return barriers > 1 && barriers < 100 ? Status() : wrong(std::to_string(barriers) + " barriers");
  };
  EXPECT_EQ(first_error(run_engine(GetParam(), 2, {}, body)), "");
}

TEST_P(RegionLifeTest, ViewsAndRegionsOutliveTheGroup) {
  std::vector<Exchange> kept(3);
  std::vector<Region> regions(3);
  auto body = [&](Group& group) -> Status {
    const auto rank = static_cast<size_t>(group.rank());
    PLAIT_ASSIGN_OR_RETURN(kept[rank], share(group, 20'000, 5, regions[rank]));
    return {};
  };
  if (GetParam() == Engine::threads) {
    EXPECT_EQ(first_error(run_ranks(3, {}, body)), "");
    for (size_t reader = 0; reader < 3; ++reader) {
      for (int peer = 0; peer < 3; ++peer) EXPECT_TRUE(check_view(kept[reader].regions[0][static_cast<size_t>(peer)], peer, 5).ok());
    }
    return;
  }
  const std::string job = unique_job();
  Processes processes(3, [&](int rank) -> Status {
    {
      PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Group> group, join_shm_group(rank, 3, job, "g"));
      PLAIT_RETURN_IF_ERROR(body(*group));
    }
    for (int peer = 0; peer < 3; ++peer)
      PLAIT_RETURN_IF_ERROR(check_view(kept[static_cast<size_t>(rank)].regions[0][static_cast<size_t>(peer)], peer, 5));
    kept.clear();
    regions.clear();
    return {};
  });
  for (const Outcome& outcome : processes.wait()) EXPECT_EQ(outcome.to_string(), "ok");
}

TEST_P(RegionLifeTest, AnErrorOnOneRankTakesNothingFromReaders) {
  auto body = [](Group& group) -> Status {
    Region region;
    PLAIT_ASSIGN_OR_RETURN(const Exchange exchange, share(group, 30'000, 1, region));
    if (group.rank() == 1) return Status::invalid_argument("on purpose");
    while (group.health().ok()) std::this_thread::yield();
    for (int peer = 0; peer < group.size(); ++peer) PLAIT_RETURN_IF_ERROR(check_view(exchange.regions[0][static_cast<size_t>(peer)], peer, 1));
    return {};
  };
  const std::vector<Status> statuses = run_engine(GetParam(), 3, {}, body);
  EXPECT_TRUE(statuses[0].ok()) << statuses[0].to_string();
  EXPECT_EQ(statuses[1].message(), "on purpose");
  EXPECT_TRUE(statuses[2].ok()) << statuses[2].to_string();
}

TEST_P(RegionLifeTest, ARegionOfAnotherGroupIsAnError) {
  auto body = [](Group& group) -> Status {
    auto other = make_thread_groups(1);
    PLAIT_ASSIGN_OR_RETURN(Region own, group.allocate(64));
    PLAIT_ASSIGN_OR_RETURN(const Region foreign, (*other)[0]->allocate(64));
    PLAIT_RETURN_IF_ERROR(group.barrier("start"));
    const Result<Exchange> exchange = group.exchange("mixed up", {}, {group.rank() == 1 ? &foreign : &own, 1});
    if (exchange.ok()) return wrong("accepted");
    const Status& status = exchange.status();
    return status.rank() == 1 && status.stage() == "mixed up" && status.code() == StatusCode::invalid_argument ? Status() : status;
  };
  EXPECT_EQ(first_error(run_engine(GetParam(), 2, {}, body)), "");
}

TEST_P(RegionLifeTest, ImpossibleSizesAreErrorsAndTheGroupLives) {
  auto body = [](Group& group) -> Status {
    for (int64_t bytes : {int64_t{-1}, std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
      if (group.allocate(bytes).status().code() != StatusCode::invalid_argument) return wrong("size " + std::to_string(bytes));
    }
    const Result<Region> huge = group.allocate(int64_t{1} << 45);
    if (huge.ok() || huge.status().code() != StatusCode::resource_exhausted) return wrong("too large a request");
    for (const char* part : {"35184372088832", "free memory", "cgroup"}) {
      if (huge.status().message().find(part) == std::string::npos)
        return wrong("the message lacks " + std::string(part) + ": " + huge.status().message());
    }
    Region region;
    PLAIT_ASSIGN_OR_RETURN(const Exchange exchange, share(group, 1000, 0, region));
    return group.barrier("end");
  };
  EXPECT_EQ(first_error(run_engine(GetParam(), 2, {}, body)), "");
}

#if defined(__SANITIZE_ADDRESS__)
TEST(RegionSanitizerTest, AUseAfterTheEndIsSeen) {
  auto groups = make_thread_groups(1);
  Region region = (*groups)[0]->allocate(1000).take();
  std::byte* data = region.data();
  data[999] = std::byte{1};
  EXPECT_DEATH(data[1024] = std::byte{1}, "use-after-poison");
  region = {};
  EXPECT_DEATH(data[0] = std::byte{1}, "use-after-poison");
}
#endif

}  // namespace
}  // namespace plait::test
