#include "base/arena.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "support/test_tensors.h"

namespace plait {
namespace {

constexpr int64_t mib = int64_t{1} << 20;

Buffer take(Arena& arena, int64_t bytes) {
  Result<Buffer> buffer = arena.take(bytes);
  EXPECT_TRUE(buffer.ok()) << buffer.status().to_string();
  return buffer.ok() ? buffer.take() : Buffer();
}

int64_t minor_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

TEST(Arena, GivesAlignedMemoryThatCanBeWritten) {
  Arena arena;
  for (int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{64}, int64_t{65}, int64_t{100000}, 3 * mib + 1, 4 * mib, 9 * mib + 5}) {
    Buffer buffer = take(arena, bytes);
    ASSERT_NE(buffer, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.get()) % 64, 0U);
    if (bytes >= 4 * mib) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.get()) % (2 * mib), 0U);
    }
    std::memset(buffer.get(), 1, static_cast<size_t>(bytes));
  }
}

TEST(Arena, ReusesTheSmallestFreeBlockThatFits) {
  Arena arena;
  Buffer large = take(arena, 10 * mib);
  Buffer medium = take(arena, 6 * mib);
  std::byte* large_at = large.get();
  std::byte* medium_at = medium.get();
  large.reset();
  medium.reset();
  Buffer fits_both = take(arena, 6 * mib - 100);
  EXPECT_EQ(fits_both.get(), medium_at);
  Buffer next = take(arena, 6 * mib - 100);
  EXPECT_EQ(next.get(), large_at);
}

TEST(Arena, DoesNotWasteALargeBlockOnASmallRequest) {
  Arena arena;
  Buffer large = take(arena, 64 * mib);
  std::byte* at = large.get();
  large.reset();
  Buffer small = take(arena, mib);
  EXPECT_NE(small.get(), at);
  Buffer again = take(arena, 60 * mib);
  EXPECT_EQ(again.get(), at);
}

TEST(Arena, CountsBytesInUseAndTheirPeak) {
  Arena arena;
  EXPECT_EQ(arena.bytes_in_use(), 0);
  Buffer a = take(arena, 6400);
  Buffer b = take(arena, 640);
  EXPECT_EQ(arena.bytes_in_use(), 7040);
  a.reset();
  EXPECT_EQ(arena.bytes_in_use(), 640);
  EXPECT_EQ(arena.peak_bytes(), 7040);
  arena.reset_peak();
  EXPECT_EQ(arena.peak_bytes(), 640);
  Buffer c = take(arena, 3200);  // lies in the larger block; what was asked for counts
  EXPECT_EQ(arena.bytes_in_use(), 3840);
}

TEST(Arena, BuffersOutliveTheArena) {
  Buffer small;
  Buffer large;
  {
    Arena arena;
    small = take(arena, 100);
    large = take(arena, 8 * mib);
  }
  std::memset(small.get(), 1, 100);
  std::memset(large.get(), 1, 8 * mib);
}

TEST(Arena, RefusesWhatCannotBe) {
  Arena arena;
  EXPECT_EQ(arena.take(-1).status().code(), StatusCode::internal);
  for (int64_t bytes : {std::numeric_limits<int64_t>::max(), int64_t{1} << 46, int64_t{1} << 44}) {
    Result<Buffer> buffer = arena.take(bytes);
    ASSERT_FALSE(buffer.ok());
    EXPECT_EQ(buffer.status().code(), StatusCode::resource_exhausted);
    EXPECT_NE(buffer.status().message().find(std::to_string(bytes)), std::string::npos) << buffer.status().message();
  }
  EXPECT_EQ(arena.bytes_in_use(), 0);
  EXPECT_TRUE(arena.take(100).ok());
}

TEST(Arena, SteadyStateTouchesNoFreshPages) {
  Arena arena;
  auto step = [&arena] {  // sizes of a small layer step, some alive together, some in turn
    std::vector<Buffer> alive;
    for (int64_t bytes : {300 * 1024L, 5 * mib, 200L, 12 * mib, 700 * 1024L}) {
      alive.push_back(take(arena, bytes));
      std::memset(alive.back().get(), 1, static_cast<size_t>(bytes));
    }
    alive.clear();
    Buffer after = take(arena, 7 * mib);
    std::memset(after.get(), 1, 7 * mib);
  };
  for (int i = 0; i < 3; ++i) step();
  int64_t before = minor_faults();
  for (int i = 0; i < 20; ++i) step();
  constexpr int64_t pages_of_one_step = 25 * mib / 4096;
  EXPECT_LT(minor_faults() - before, pages_of_one_step / 50);  // the C library may touch a few of its own
}

TEST(Arena, VaryingSizesSettleWithoutPilingUpBlocks) {
  Arena arena;
  test::Random random(7);
  auto step = [&] {
    int64_t bytes = 8 * mib + random.below(6 * mib);
    Buffer buffer = take(arena, bytes);
    std::memset(buffer.get(), 1, static_cast<size_t>(bytes));
    return buffer.get();
  };
  std::byte* last = nullptr;
  for (int i = 0; i < 100; ++i) last = step();
  for (int i = 0; i < 50; ++i) EXPECT_EQ(step(), last);
}

TEST(Arena, TrimGivesFreeBlocksBackAndLeavesTheOthers) {
  Arena arena;
  Buffer kept = take(arena, 5 * mib);
  take(arena, 16 * mib);
  arena.trim();
  std::memset(kept.get(), 1, 5 * mib);
  EXPECT_EQ(arena.bytes_in_use(), 5 * mib);
}

TEST(Arena, ManyThreadsTakeAndDropEachOthersBuffers) {
  Arena arena;
  std::vector<Buffer> shared(64);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = 0; i < 16; ++i) {
          Buffer buffer = take(arena, static_cast<int64_t>(1000 * (i + 1)));
          std::memset(buffer.get(), static_cast<int>(t), 1000 * (i + 1));
          shared[(t * 16 + i + static_cast<size_t>(round) * 16) % 64] = std::move(buffer);
        }
      });
    }
    for (auto& thread : threads) thread.join();
  }
  shared.clear();
  EXPECT_EQ(arena.bytes_in_use(), 0);
}

}  // namespace
}  // namespace plait
