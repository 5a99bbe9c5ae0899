#include "plait/tensor.h"

#include <gtest/gtest.h>

#include <vector>

#include "plait/counters.h"
#include "plait/version.h"

namespace plait {
namespace {

TEST(TensorView, NamesTypeShapeAndStrides) {
  std::vector<float> data(24);
  TensorView view(data.data(), DType::f32, {4, 6});
  EXPECT_EQ(describe(view), "f32 (4, 6) strides (6, 1)");
  EXPECT_EQ(describe(view.transposed(0, 1)), "f32 (6, 4) strides (1, 6)");
  EXPECT_EQ(describe(ConstTensorView()), "no tensor");
  EXPECT_EQ(name(DType::bf16), "bf16");
}

TEST(TensorView, ContiguityIgnoresDimensionsOfOne) {
  std::vector<float> data(24);
  TensorView view(data.data(), DType::f32, {4, 6});
  EXPECT_TRUE(view.is_contiguous());
  EXPECT_FALSE(view.transposed(0, 1).is_contiguous());
  TensorView one(data.data(), DType::f32, {1, 4});
  one.strides[0] = 0;
  EXPECT_TRUE(one.is_contiguous());
  TensorView empty(nullptr, DType::f32, {0, 4});
  empty.strides = {9, 9};
  EXPECT_TRUE(empty.is_contiguous());
}

TEST(TensorView, SlicesAndItemsPointToTheirElements) {
  std::vector<int32_t> data(24);
  for (int i = 0; i < 24; ++i) data[static_cast<size_t>(i)] = i;
  ConstTensorView view(data.data(), DType::i32, {2, 3, 4});
  EXPECT_EQ(*view[1][2].as<int32_t>(), 20);
  EXPECT_EQ(*reinterpret_cast<const int32_t*>(view.at(1, 2, 3)), 23);
  EXPECT_EQ(view.slice(1, 2).num_elements(), 12);
  EXPECT_EQ(*view.slice(1, 2).as<int32_t>(), 12);
}

TEST(Counters, EveryStageAndCounterHasItsOwnName) {
  std::vector<std::string_view> names;
  for (int i = 0; i < num_stages; ++i) names.push_back(name(static_cast<Stage>(i)));
  for (int i = 0; i < num_counters; ++i) names.push_back(name(static_cast<Counter>(i)));
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_FALSE(names[i].empty());
    for (size_t j = 0; j < i; ++j) EXPECT_NE(names[i], names[j]);
  }
  EXPECT_EQ(name(Stage::route), "route");
  EXPECT_EQ(name(Stage::weight_gradient), "weight_gradient");
  EXPECT_EQ(name(Stage::other), "other");
  EXPECT_EQ(name(Counter::matmul_flops), "matmul_flops");
}

TEST(Counters, RecorderSumsZonesAndKeepsEventsOnRequest) {
  Recorder recorder;
  recorder.add_zone(Stage::permute, 10, 30);
  recorder.keep_events = true;
  recorder.add_zone(Stage::permute, 40, 45);
  recorder.add(Counter::rows_sent, 7);
  EXPECT_EQ(recorder.stage_ns(Stage::permute), 25);
  ASSERT_EQ(recorder.events().size(), 1U);
  EXPECT_EQ(recorder.events()[0].begin_ns, 40);
  EXPECT_EQ(recorder.value(Counter::rows_sent), 7);
  recorder.reset();
  EXPECT_EQ(recorder.stage_ns(Stage::permute) + recorder.value(Counter::rows_sent), 0);
  { Zone zone(recorder, Stage::down); }
  EXPECT_EQ(recorder.events().size(), 1U);
  EXPECT_GE(recorder.stage_ns(Stage::down), 0);
}

TEST(Version, IsThatOfTheFile) { EXPECT_EQ(version(), PLAIT_TEST_VERSION); }

}  // namespace
}  // namespace plait
