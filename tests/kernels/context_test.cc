#include "plait/context.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "base/arena.h"
#include "base/thread_pool.h"
#include "kernels/kernel_set.h"
#include "plait/counters.h"

namespace plait {
namespace {

/// An environment variable for the length of a test.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    setenv(name, value, 1);
  }
  ~Setting() { old_.empty() ? unsetenv(name_) : setenv(name_, old_.c_str(), 1); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
  std::string old_;
};

TEST(Context, ThreadsComeFromTheOptionsTheEnvironmentOrTheMachine) {
  EXPECT_EQ(Context::create({.threads = 3}).value()->threads(), 3);
  {
    Setting threads("PLAIT_THREADS", "2");
    EXPECT_EQ(Context::create().value()->threads(), 2);
    EXPECT_EQ(Context::create({.threads = 5}).value()->threads(), 5);
  }
  Setting unset("PLAIT_THREADS", "");
  EXPECT_EQ(Context::create().value()->threads(), usable_cpus());
}

TEST(Context, ImpossibleOptionsAreErrors) {
  auto negative = Context::create({.threads = -1});
  ASSERT_FALSE(negative.ok());
  EXPECT_EQ(negative.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(negative.status().message().find("threads = -1"), std::string::npos);
  EXPECT_FALSE(Context::create({.threads = 1000000}).ok());
  auto unknown = Context::create({.threads = 1, .kernel = "sse2"});
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code(), StatusCode::invalid_argument);
}

TEST(Context, TheTierIsTheOneAskedFor) {
  for (const TierState& state : tier_states()) {
    auto context = Context::create({.threads = 1, .kernel = std::string(name(state.tier))});
    ASSERT_EQ(context.ok(), state.usable) << state.reason;
    if (!context.ok()) {
      EXPECT_EQ(context.status().code(), StatusCode::unavailable);
      EXPECT_NE(context.status().message().find(state.reason), std::string::npos) << context.status().message();
      continue;
    }
    EXPECT_EQ((*context)->tier(), state.tier);
    EXPECT_EQ(&(*context)->kernels(), kernels::kernel_set(state.tier));
  }
}

TEST(Context, TensorsComeFromTheArena) {
  auto context = Context::create({.threads = 1}).take();
  Tensor zeros = context->zeros(DType::bf16, {3, 5}).take();
  EXPECT_EQ(zeros.view.shape[0], 3);
  EXPECT_EQ(zeros.view.shape[1], 5);
  EXPECT_TRUE(zeros.view.is_contiguous());
  for (int64_t i = 0; i < 15; ++i) EXPECT_EQ(zeros.as<uint16_t>()[i], 0);
  Tensor empty = context->empty(DType::f32, {0, 7}).take();
  EXPECT_EQ(empty.view.num_elements(), 0);
  Buffer scratch = context->scratch(1000).take();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(scratch.get()) % 64, 0U);
  EXPECT_GE(context->arena().bytes_in_use(), 1000);
}

TEST(Context, ATensorOutlivesItsContext) {
  Tensor tensor;
  {
    auto context = Context::create({.threads = 1}).take();
    tensor = context->zeros(DType::f32, {16}).take();
  }
  EXPECT_EQ(tensor.as<float>()[15], 0.0F);
}

TEST(Context, SeveralCoexist) {
  auto a = Context::create({.threads = 2}).take(), b = Context::create({.threads = 1, .kernel = "reference"}).take();
  EXPECT_NE(&a->pool(), &b->pool());
  EXPECT_NE(&a->arena(), &b->arena());
  a->recorder().add(Counter::exchanges, 1);
  EXPECT_EQ(b->recorder().value(Counter::exchanges), 0);
}

}  // namespace
}  // namespace plait
