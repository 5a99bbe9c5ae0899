#include "kernels/gemm_problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include <gtest/gtest.h>

#include "base/float_mode.h"
#include "kernels/gemm_kernels.h"

namespace plait::test {
namespace {

constexpr int64_t gap = 3;  // elements between neighbours of a strided matrix

/// Rows at `misaligned` bytes off their alignment, with distances that are no multiple of anything, as addresses or as a stride.
class RowSet {
 public:
  RowSet(const Tensor& values, int64_t misaligned, bool list, uint64_t seed) {
    num_rows_ = values.view.shape[0];
    row_bytes_ = values.view.shape[1] * size_of(values.view.dtype);
    stride_ = row_bytes_ + (misaligned != 0 ? misaligned : size_of(values.view.dtype));
    memory_.assign(static_cast<size_t>(num_rows_ * stride_ + 64), std::byte{0xff});
    base_ = memory_.data() + misaligned;
    std::vector<int64_t> place(static_cast<size_t>(num_rows_));
    std::iota(place.begin(), place.end(), 0);
    Random random(seed);
    if (list) {
      for (size_t i = place.size(); i > 1; --i) std::swap(place[i - 1], place[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
    }
    for (int64_t i = 0; i < num_rows_; ++i) {
      std::byte* row = base_ + place[static_cast<size_t>(i)] * stride_;
      if (row_bytes_ > 0) std::memcpy(row, values.view.data + i * row_bytes_, static_cast<size_t>(row_bytes_));
      addresses_.push_back(row);
    }
    list_ = list;
  }
  /// Row i is what row `from[i]` is.
  void duplicate(int64_t i, int64_t from) { addresses_[static_cast<size_t>(i)] = addresses_[static_cast<size_t>(from)]; }
  kernels::Rows rows() const { return list_ ? kernels::Rows{nullptr, 0, const_list()} : kernels::Rows{base_, stride_, nullptr}; }
  kernels::MutableRows writable() const {
    return list_ ? kernels::MutableRows{nullptr, 0, addresses_.data()} : kernels::MutableRows{base_, stride_, nullptr};
  }
  void copy_to(const Tensor& values) const {
    for (int64_t i = 0; i < num_rows_; ++i) {
      std::memcpy(values.view.data + i * row_bytes_, addresses_[static_cast<size_t>(i)], static_cast<size_t>(row_bytes_));
    }
  }
  /// Everything between the rows is still as it was.
  bool gaps_untouched() const {
    std::vector<bool> used(memory_.size());
    for (std::byte* row : addresses_) {
      for (int64_t b = 0; b < row_bytes_; ++b) used[static_cast<size_t>(row - memory_.data() + b)] = true;
    }
    for (size_t b = 0; b < memory_.size(); ++b) {
      if (!used[b] && memory_[b] != std::byte{0xff}) return false;
    }
    return true;
  }

 private:
  const std::byte* const* const_list() const { return addresses_.data(); }
  int64_t num_rows_ = 0, row_bytes_ = 0, stride_ = 0;
  bool list_ = false;
  std::vector<std::byte> memory_;
  std::byte* base_ = nullptr;
  std::vector<std::byte*> addresses_;
};

struct Strides {
  int64_t group, row, column;
  int64_t elements(int64_t groups) const { return groups * group; }
};
Strides strides_of(Storage storage, int64_t rows, int64_t columns) {
  switch (storage) {
    case Storage::kn:
      return {rows * columns, columns, 1};
    case Storage::nk:
      return {rows * columns, 1, rows};
    case Storage::strided:
      return {rows * columns * gap * 2, columns * gap, gap};
  }
  return {};
}

/// Copies (groups, rows, columns) from or to another storage.
void restore(const Tensor& contiguous, std::byte* stored, const Strides& strides, bool to_storage) {
  const auto& shape = contiguous.view.shape;
  const int64_t bytes = size_of(contiguous.view.dtype);
  for (int64_t g = 0; g < shape[0]; ++g) {
    for (int64_t i = 0; i < shape[1]; ++i) {
      for (int64_t j = 0; j < shape[2]; ++j) {
        std::byte* a = contiguous.view.data + ((g * shape[1] + i) * shape[2] + j) * bytes;
        std::byte* b = stored + (g * strides.group + i * strides.row + j * strides.column) * bytes;
        std::memcpy(to_storage ? b : a, to_storage ? a : b, static_cast<size_t>(bytes));
      }
    }
  }
}

int64_t total(const std::vector<int64_t>& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

/// Some rows of a list stand for others.
void duplicate_some(RowSet& rows, int64_t num_rows) {
  for (int64_t i = 1; i < num_rows; i += 3) rows.duplicate(i, i - 1);
}

template <typename Run>
Tensor run_case(const MCase& c, Run run_problem) {
  const auto groups = static_cast<int64_t>(c.counts.size());
  const int64_t num_rows = total(c.counts);
  RowSet x(filled_tensor(c.in, {num_rows, c.k}, c.fill, c.seed), c.misaligned, c.list, c.seed + 10);
  if (c.list) duplicate_some(x, num_rows);
  Tensor y = make_tensor(c.out, {num_rows, c.n});
  RowSet out(y, c.misaligned, c.list, c.seed + 11);
  Tensor weights = filled_tensor(c.in, {groups, c.k, c.n}, c.fill, c.seed + 1);
  const Strides strides = strides_of(c.storage, c.k, c.n);
  std::vector<std::byte> stored(static_cast<size_t>(strides.elements(groups) * size_of(c.in) + 64));
  restore(weights, stored.data() + c.misaligned, strides, true);
  Tensor bias = filled_tensor(c.in, {groups, c.n}, c.fill, c.seed + 2);

  kernels::MGroupedGemm problem{};
  problem.in = c.in;
  problem.out = c.out;
  problem.k = c.k;
  problem.n = c.n;
  problem.counts = c.counts;
  problem.x = x.rows();
  problem.weights = {stored.data() + c.misaligned, strides.group, strides.row, strides.column};
  problem.bias = c.bias ? bias.view.data : nullptr;
  problem.bias_type = c.in;
  problem.bias_group_stride = c.n;
  problem.y = out.writable();
  run_problem(problem);
  EXPECT_TRUE(out.gaps_untouched()) << c.to_string();
  out.copy_to(y);
  return y;
}

template <typename Run>
Tensor run_case(const KCase& c, Run run_problem) {
  const auto groups = static_cast<int64_t>(c.counts.size());
  const int64_t num_rows = total(c.counts);
  RowSet x(filled_tensor(c.in, {num_rows, c.k}, c.fill, c.seed), c.misaligned, c.list, c.seed + 10);
  RowSet dy(filled_tensor(c.in, {num_rows, c.n}, c.fill, c.seed + 1), c.misaligned, c.list, c.seed + 11);
  if (c.list) duplicate_some(x, num_rows);
  Tensor dw = c.accumulate ? filled_tensor(c.out, {groups, c.k, c.n}, Fill::uniform, c.seed + 2) : make_tensor(c.out, {groups, c.k, c.n});
  const Strides strides = strides_of(c.storage, c.k, c.n);
  std::vector<std::byte> stored(static_cast<size_t>(strides.elements(groups) * size_of(c.out) + 64));
  restore(dw, stored.data() + c.misaligned, strides, true);

  kernels::KGroupedGemm problem{};
  problem.in = c.in;
  problem.out = c.out;
  problem.k = c.k;
  problem.n = c.n;
  problem.counts = c.counts;
  problem.x = x.rows();
  problem.dy = dy.rows();
  problem.dw = stored.data() + c.misaligned;
  problem.dw_group_stride = strides.group;
  problem.dw_k_stride = strides.row;
  problem.dw_n_stride = strides.column;
  problem.accumulate = c.accumulate;
  run_problem(problem);
  restore(dw, stored.data() + c.misaligned, strides, false);
  return dw;
}

/// With a hint that another tile of the problem comes next.
void run_tile(const kernels::TileRunner& runner, const kernels::MGroupedGemm& problem, const kernels::Tile& tile, const kernels::Tile* next) {
  if (next == nullptr) return runner.run(problem, tile, 0);
  const kernels::NextTile next_tile{&problem, *next};
  runner.run(problem, tile, 0, &next_tile);
}
void run_tile(const kernels::TileRunner& runner, const kernels::KGroupedGemm& problem, const kernels::Tile& tile, const kernels::Tile* /*next*/) {
  runner.run(problem, tile, 0);
}

template <typename Case>
Tensor run_backwards(const Context& context, const Case& c, const kernels::TileLimits& limits) {
  return run_case(c, [&](const auto& problem) {
    FloatMode mode;
    auto tiles = kernels::make_tiles(problem, limits);
    auto runner = kernels::TileRunner::create(context, problem, limits);
    ASSERT_TRUE(runner.ok()) << runner.status().to_string();
    for (size_t i = tiles.size(); i-- > 0;) run_tile(*runner, problem, tiles[i], i > 0 ? &tiles[i - 1] : nullptr);
  });
}

std::string join(const std::vector<int64_t>& counts) {
  std::string text;
  for (int64_t count : counts) text += fmt::format("{}{}", text.empty() ? "" : ",", count);
  return text;
}

template <typename Case>
std::string describe_case(const Case& c) {
  return fmt::format("{}->{} k {} n {} counts [{}] storage {} fill {} list {} misaligned {} seed {}", name(c.in), name(c.out), c.k, c.n,
                     join(c.counts), static_cast<int>(c.storage), static_cast<int>(c.fill), c.list, c.misaligned, c.seed);
}

}  // namespace

std::string MCase::to_string() const { return describe_case(*this) + (bias ? " bias" : ""); }
std::string KCase::to_string() const { return describe_case(*this) + (accumulate ? " accumulate" : ""); }

Tensor run(const Context& context, const MCase& c) {
  return run_case(c, [&](const kernels::MGroupedGemm& problem) { EXPECT_TRUE(kernels::m_grouped_gemm(context, problem).ok()); });
}
Tensor run(const Context& context, const KCase& c) {
  return run_case(c, [&](const kernels::KGroupedGemm& problem) { EXPECT_TRUE(kernels::k_grouped_gemm(context, problem).ok()); });
}
Tensor run_tiles_backwards(const Context& context, const MCase& c, const kernels::TileLimits& limits) { return run_backwards(context, c, limits); }
Tensor run_tiles_backwards(const Context& context, const KCase& c, const kernels::TileLimits& limits) { return run_backwards(context, c, limits); }

Tensor run_in_stretches(const Context& context, const KCase& c, const kernels::TileLimits& limits, int64_t rows) {
  return run_case(c, [&](const kernels::KGroupedGemm& problem) {
    FloatMode mode;
    auto runner = kernels::TileRunner::create(context, problem, limits);
    ASSERT_TRUE(runner.ok()) << runner.status().to_string();
    for (const kernels::Tile& tile : kernels::make_tiles(problem, limits)) {
      std::vector<float> carry(static_cast<size_t>(kernels::carry_floats(limits)));
      const int64_t count = problem.counts[static_cast<size_t>(tile.group)];
      for (int64_t begin = 0; begin == 0 || begin < count; begin += rows) {
        const kernels::RowStretch stretch{begin, std::min(begin + rows, count), carry.data()};
        runner->run(problem, tile, 0, &stretch);
      }
    }
  });
}

Tensor filled_tensor(DType dtype, std::initializer_list<int64_t> shape, Fill fill, uint64_t seed) {
  Tensor t = make_tensor(dtype, shape);
  Random random(seed);
  for (int64_t i = 0; i < t.view.num_elements(); ++i) {
    if (fill == Fill::bits) {
      uint64_t bits = random.next();
      std::memcpy(t.view.data + i * size_of(dtype), &bits, static_cast<size_t>(size_of(dtype)));
    } else {
      float value = random.uniform(-1, 1);
      // The exponents stay where neither products nor sums of them become denormal.
      float scale = fill == Fill::wide ? std::exp2(static_cast<float>(random.below(13) - 6)) : 1.0F;
      set(t, i, static_cast<double>(value * scale));
    }
  }
  return t;
}

std::unique_ptr<Context> make_context(int threads, std::string_view kernel) {
  auto context = Context::create({.threads = threads, .kernel = std::string(kernel)});
  EXPECT_TRUE(context.ok()) << context.status().to_string();
  return context.ok() ? context.take() : nullptr;
}

std::vector<const Context*> vector_contexts() {
  static const std::vector<std::unique_ptr<Context>> owned = [] {
    std::vector<std::unique_ptr<Context>> contexts;
    for (const TierState& state : tier_states()) {
      if (state.usable && state.tier != Tier::reference) contexts.push_back(make_context(1, name(state.tier)));
    }
    return contexts;
  }();
  std::vector<const Context*> contexts;
  for (const auto& context : owned) contexts.push_back(context.get());
  return contexts;
}

const Context& reference_context() {
  static const std::unique_ptr<Context> context = make_context(1, "reference");
  return *context;
}

}  // namespace plait::test
