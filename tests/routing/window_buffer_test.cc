#include "routing/window_buffer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "base/status_macros.h"
#include "support/processes.h"
#include "support/test_tensors.h"

namespace plait {
namespace {

/// Ranks that each run body(context, group).
template <typename Body>
void expect_ok_on(int num_ranks, Body body) {
  EXPECT_EQ(test::first_error(run_ranks(num_ranks, {},
                                        [&](Group& group) -> Status {
                                          PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context,
                                                                 Context::create({.threads = 1, .kernel = ""}));
                                          return body(*context, group);
                                        })),
            "");
}

TEST(WindowBuffer, RowsThatBeginItAreFoundWhileItIsHeld) {
  expect_ok_on(2, [](const Context& context, Group& group) -> Status {
    Tensor rows;
    {
      PLAIT_ASSIGN_OR_RETURN(const WindowBuffer buffer, WindowBuffer::open(context, group, 64));
      rows = buffer.tensor(0, DType::f32, {4, 4});
    }
    const std::optional<WindowBuffer> found = WindowBuffer::find(group, rows);
    EXPECT_TRUE(found && found->data() == rows.view.data && found->region().bytes() == 64);
    EXPECT_TRUE(WindowBuffer::find(group, rows.view.slice(0, 3))) << "less of it";
    EXPECT_FALSE(WindowBuffer::find(group, rows.view.slice(1, 4))) << "not from its begin";
    EXPECT_FALSE(WindowBuffer::find(group, rows.view.transposed(0, 1))) << "not contiguous";
    EXPECT_FALSE(group.find_region(rows.view.data, 65)) << "more than it has";
    EXPECT_FALSE(WindowBuffer::find(group, test::make_tensor(DType::f32, {4, 4}))) << "elsewhere";
    return {};
  });
}

TEST(WindowBuffer, AFoundOneKeepsTheMemory) {
  expect_ok_on(2, [](const Context& context, Group& group) -> Status {
    PLAIT_ASSIGN_OR_RETURN(WindowBuffer buffer, WindowBuffer::open(context, group, 100));
    std::byte* data = buffer.data();
    std::optional<WindowBuffer> found = WindowBuffer::find(group, TensorView(data, DType::u8, {100, 1}));
    buffer = {};
    EXPECT_GE(group.window_bytes(), 100);
    EXPECT_TRUE(group.find_region(data, 100));
    found.reset();
    EXPECT_EQ(group.window_bytes(), 0);
    EXPECT_FALSE(group.find_region(data, 100));
    return {};
  });
}

TEST(WindowBuffer, OfAGroupOfOneIsNoWindow) {
  expect_ok_on(1, [](const Context& context, Group& group) -> Status {
    PLAIT_ASSIGN_OR_RETURN(const WindowBuffer buffer, WindowBuffer::open(context, group, 64));
    EXPECT_EQ(group.window_bytes(), 0);
    EXPECT_EQ(buffer.region().data(), nullptr);
    EXPECT_FALSE(WindowBuffer::find(group, buffer.tensor(0, DType::f32, {4, 4})));
    return {};
  });
}

}  // namespace
}  // namespace plait
