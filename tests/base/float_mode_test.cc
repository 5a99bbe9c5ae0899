#include "base/float_mode.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "plait/status.h"

namespace plait {
namespace {

/// The smallest float32 denormal times 1, computed at run time: 0 where denormals are flushed.
float smallest_denormal() {
  volatile float tiny = 0x1p-149F;
  volatile float one = 1.0F;
  return tiny * one;
}

Status fail_half_way(float& inside) {
  FloatMode mode;
  inside = smallest_denormal();
  return Status::internal("half-way");
}

TEST(FloatMode, FlushesInsideAndRestoresAfter) {
  ASSERT_NE(smallest_denormal(), 0.0F);
  {
    FloatMode mode;
    EXPECT_EQ(smallest_denormal(), 0.0F);
    {
      FloatMode nested;
      EXPECT_EQ(smallest_denormal(), 0.0F);
    }
    EXPECT_EQ(smallest_denormal(), 0.0F);
  }
  EXPECT_NE(smallest_denormal(), 0.0F);
}

TEST(FloatMode, RestoresOnTheErrorPath) {
  float inside = 1;
  EXPECT_FALSE(fail_half_way(inside).ok());
  EXPECT_EQ(inside, 0.0F);
  EXPECT_NE(smallest_denormal(), 0.0F);
}

TEST(FloatMode, SetsRoundingToNearestAndPutsTheCallersBack) {
  volatile float one = 1.0F;
  volatile float small = 0x1p-30F;
  std::fesetround(FE_UPWARD);
  {
    FloatMode mode;
    float sum = one + small;
    EXPECT_EQ(sum, 1.0F);
  }
  float sum = one + small;
  EXPECT_GT(sum, 1.0F);
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(FE_TONEAREST);
}

TEST(FloatMode, IsInForceInEveryTaskAndNowhereElse) {
  for (int threads : {1, 4}) {
    ThreadPool pool(threads);
    std::vector<float> inside(64, 1.0F);
    pool.parallel_for(64, [&](int64_t task, int) { inside[static_cast<size_t>(task)] = smallest_denormal(); });
    for (float value : inside) EXPECT_EQ(value, 0.0F);
    EXPECT_NE(smallest_denormal(), 0.0F);
    float fresh_thread = 0;
    std::thread([&] { fresh_thread = smallest_denormal(); }).join();
    EXPECT_NE(fresh_thread, 0.0F);
  }
}

}  // namespace
}  // namespace plait
