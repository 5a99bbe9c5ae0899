// The bits of a result do not depend on threads, tiles, their order, or which rows share a call.

#include <gtest/gtest.h>

#include "kernels/gemm_problem.h"

namespace plait::test {
namespace {

constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};

MCase forward_case(DType type) {
  return {.in = type, .out = type, .k = 300, .n = 200, .counts = {70, 0, 1, 33, 5}, .fill = Fill::wide, .bias = true, .list = true};
}
KCase gradient_case(DType type) { return {.in = type, .out = type, .k = 150, .n = 200, .counts = {70, 0, 1, 333, 5}, .fill = Fill::wide}; }

TEST(GemmSchedule, NumberOfThreads) {
  for (DType type : types) {
    Tensor y = run(*make_context(1), forward_case(type)), dw = run(*make_context(1), gradient_case(type));
    for (int threads : {2, 5, 8}) {
      auto context = make_context(threads);
      EXPECT_BITS_EQ(run(*context, forward_case(type)), y) << threads;
      EXPECT_BITS_EQ(run(*context, gradient_case(type)), dw) << threads;
    }
  }
}

TEST(GemmSchedule, SizeAndOrderOfTiles) {
  auto context = make_context(1);
  for (DType type : types) {
    Tensor y = run(*context, forward_case(type)), dw = run(*context, gradient_case(type));
    for (kernels::TileLimits limits : {kernels::TileLimits{7, 64, 16}, {64, 128, 50}, {1, 256, 256}, {384, 64, 512}}) {
      EXPECT_BITS_EQ(run_tiles_backwards(*context, forward_case(type), limits), y) << limits.rows << " " << limits.columns;
      EXPECT_BITS_EQ(run_tiles_backwards(*context, gradient_case(type), limits), dw) << limits.rows << " " << limits.columns;
    }
  }
}

TEST(GemmSchedule, ForcedTileShapes) {
  auto context = make_context(1);
  for (DType type : types) {
    Tensor y = run(*context, forward_case(type)), dw = run(*context, gradient_case(type));
    for (TileShape tile : {TileShape{1, 1}, {5, 100}, {64, 0}, {0, 64}}) {
      auto forced = Context::create({.threads = 2, .tile = tile}).take();
      EXPECT_BITS_EQ(run(*forced, forward_case(type)), y) << tile.rows << " " << tile.columns;
      EXPECT_BITS_EQ(run(*forced, gradient_case(type)), dw) << tile.rows << " " << tile.columns;
    }
  }
}

/// A weight gradient made in several goes, of the kinds that differ in where the accumulators lie.
TEST(GemmSchedule, RowsInStretches) {
  std::vector<const Context*> contexts = vector_contexts();
  contexts.push_back(&reference_context());
  for (int64_t i = 0; i < 18; ++i) {
    KCase c{.in = types[i % 3], .out = types[i % 3], .k = 37, .n = 70, .counts = {70, 0, 1, 333, 5}, .fill = Fill::wide};
    c.storage = static_cast<Storage>(i / 3 % 3);
    c.accumulate = i >= 9;
    if (c.accumulate) c.out = DType::f32;
    for (const Context* context : contexts) {
      const Tensor dw = run(*context, c);
      for (kernels::TileLimits limits : {kernels::TileLimits{7, 64, 16}, {128, 256, 256}}) {
        for (int64_t rows : {2, 70, 256}) EXPECT_BITS_EQ(run_in_stretches(*context, c, limits, rows), dw) << c.to_string() << " " << rows;
      }
    }
  }
}

TEST(GemmSchedule, TilesHaveWholePanels) {
  kernels::KGroupedGemm problem{};
  problem.k = 1000;
  problem.n = 9000;
  for (int64_t rows = 1; rows <= 300; ++rows) {
    const std::vector<int64_t> counts = {rows, 1, 0};
    problem.counts = counts;
    for (const TileShape& tile : {TileShape{}, {9, 90}}) {
      auto context = Context::create({.threads = 2, .tile = tile}).take();
      EXPECT_EQ(kernels::tile_limits(*context, problem).columns % 64, 0) << rows << " rows";
    }
  }
}

TEST(GemmSchedule, EveryElementBelongsToOneTile) {
  const std::vector<int64_t> counts = {70, 0, 1, 385};
  kernels::MGroupedGemm problem{};
  problem.k = 5;
  problem.n = 200;
  problem.counts = counts;
  for (const ContextOptions& options : {ContextOptions{.threads = 1}, {.threads = 2}, {.threads = 64}, {.threads = 1, .tile = {3, 70}}}) {
    auto context = Context::create(options).take();
    std::vector<int> seen(456 * 200);
    for (const kernels::Tile& tile : kernels::make_tiles(problem, kernels::tile_limits(*context, problem))) {
      if (options.tile.rows > 0) {
        EXPECT_LE(tile.row_end - tile.row_begin, 3);
        EXPECT_LE(tile.col_end - tile.col_begin, 128);
      }
      for (int64_t r = tile.row_begin; r < tile.row_end; ++r) {
        for (int64_t c = tile.col_begin; c < tile.col_end; ++c) ++seen[static_cast<size_t>((tile.group_first_row + r) * 200 + c)];
      }
    }
    EXPECT_EQ(seen, std::vector<int>(456 * 200, 1)) << options.threads;
  }
}

/// A row multiplied alone equals the same row among others (K 4099: several blocks; N 3: less than a panel).
TEST(GemmSchedule, RowsAreIndependent) {
  constexpr int64_t rows = 64, k = 4099, n = 3;
  for (DType type : types) {
    Tensor x = random_tensor(type, {rows, k}, 1), w = random_tensor(type, {k, n}, 2);
    auto multiply = [&](const Context& context, int64_t first, int64_t count) {
      Tensor y = make_tensor(type, {count, n});
      const int64_t counts[] = {count};
      kernels::MGroupedGemm problem{};
      problem.in = problem.out = type;
      problem.k = k;
      problem.n = n;
      problem.counts = counts;
      problem.x = {x.view.at(first), k * size_of(type), nullptr};
      problem.weights = {w.view.data, 0, n, 1};
      problem.y = {y.view.data, n * size_of(type), nullptr};
      EXPECT_TRUE(kernels::m_grouped_gemm(context, problem).ok());
      return y;
    };
    Tensor all = multiply(*make_context(1), 0, rows);
    for (int threads : {2, 5, 8}) EXPECT_BITS_EQ(multiply(*make_context(threads), 0, rows), all);
    auto context = make_context(1);
    for (int64_t r = 0; r < rows; ++r) EXPECT_BITS_EQ(multiply(*context, r, 1), all.view.slice(r, r + 1)) << r;
    for (int64_t r = 0; r + 9 <= rows; r += 9) EXPECT_BITS_EQ(multiply(*context, r, 9), all.view.slice(r, r + 9)) << r;
  }
}

/// The gradient of a group does not depend on the groups beside it.
TEST(GemmSchedule, GroupsAreIndependent) {
  for (DType type : types) {
    auto context = make_context(2);
    KCase whole = gradient_case(type);
    Tensor dw = run(*context, whole);
    KCase first = whole;
    first.counts = {70};
    EXPECT_BITS_EQ(run(*context, first), dw.view.slice(0, 1));
  }
}

TEST(GemmSchedule, SkewedGroups) {
  for (DType type : types) {
    MCase c{.in = type, .out = type, .k = 40, .n = 130, .counts = {900, 1, 0, 1, 2, 0, 3}};
    KCase d{.in = type, .out = type, .k = 40, .n = 130, .counts = {900, 1, 0, 1, 2, 0, 3}};
    Tensor y = run(*make_context(1), c), dw = run(*make_context(1), d);
    auto context = make_context(5);
    EXPECT_BITS_EQ(run(*context, c), y);
    EXPECT_BITS_EQ(run(*context, d), dw);
  }
}

}  // namespace
}  // namespace plait::test
