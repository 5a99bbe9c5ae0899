#include "ops/alltoallv_gmm_support.h"

#include <fmt/format.h>

#include <cstring>
#include <numeric>
#include <optional>

#include "base/status_macros.h"
#include "support/delayed_group.h"
#include "support/processes.h"

namespace plait::test {
namespace {

std::string_view name_of(Load load) {
  constexpr std::string_view names[] = {"uneven", "skewed", "few experts", "empty rank", "one row", "nothing"};
  return names[static_cast<size_t>(load)];
}

int64_t sum(const std::vector<int64_t>& list) { return std::accumulate(list.begin(), list.end(), int64_t{0}); }

void copy_row(const Tensor& from, int64_t from_row, const Tensor& to, int64_t to_row) {
  std::memcpy(to.view.at(to_row), from.view.at(from_row), static_cast<size_t>(from.view.shape[1] * size_of(from.view.dtype)));
}

/// Calls visit(permuted row of s, expert-major row of d) for all rows between two ranks: the orders of both sides, written out.
template <typename Visit>
void for_each_row(const PairCase& c, int s, int d, Visit visit) {
  for (int64_t j = 0; j < c.experts; ++j) {
    int64_t permuted = 0, expert_major = 0;
    for (int64_t g = 0; g < d * c.experts + j; ++g) permuted += c.count(s, g);
    for (int64_t i = 0; i < j; ++i) {
      for (int source = 0; source < c.num_ranks; ++source) expert_major += c.count(source, d * c.experts + i);
    }
    for (int source = 0; source < s; ++source) expert_major += c.count(source, d * c.experts + j);
    for (int64_t i = 0; i < c.count(s, d * c.experts + j); ++i) visit(permuted + i, expert_major + i);
  }
}

}  // namespace

void PairCase::fill_counts(int64_t largest) {
  Random random(seed);
  counts.assign(static_cast<size_t>(num_ranks * num_experts()), 0);
  const int silent = static_cast<int>(random.below(num_ranks));
  for (int s = 0; s < num_ranks; ++s) {
    for (int64_t g = 0; g < num_experts(); ++g) {
      const int64_t draw = random.below(largest + 1);
      int64_t& count = counts[static_cast<size_t>(s * num_experts() + g)];
      if (load == Load::uneven) count = draw;
      if (load == Load::skewed) count = g == num_experts() / 2 ? 3 * largest + s : (draw == 0 ? 1 : 0);
      if (load == Load::few_experts) count = g % 3 == 1 ? draw + 1 : 0;
      if (load == Load::empty_rank) count = s == silent || g / experts == (silent + 1) % num_ranks ? 0 : draw;
      if (load == Load::one_row) count = s == silent && g == num_experts() - 1 ? 1 : 0;
    }
  }
}

std::vector<int64_t> PairCase::out_counts(int rank) const {
  const auto begin = counts.begin() + rank * num_experts();
  return {begin, begin + num_experts()};
}

std::vector<int64_t> PairCase::arrive_counts(int rank) const {
  std::vector<int64_t> list;
  for (int s = 0; s < num_ranks; ++s) {
    for (int64_t j = 0; j < experts; ++j) list.push_back(count(s, rank * experts + j));
  }
  return list;
}

int64_t PairCase::num_home_rows(int rank) const { return sum(out_counts(rank)); }
int64_t PairCase::num_expert_rows(int rank) const { return sum(arrive_counts(rank)); }

std::vector<int64_t> PairCase::expert_rows(int rank) const {
  std::vector<int64_t> list(static_cast<size_t>(experts), 0);
  for (int s = 0; s < num_ranks; ++s) {
    for (int64_t j = 0; j < experts; ++j) list[static_cast<size_t>(j)] += count(s, rank * experts + j);
  }
  return list;
}

Tensor PairCase::rows(int rank, int what, int64_t num_rows, int64_t columns) const {
  const uint64_t tensor_seed = seed * 1000 + static_cast<uint64_t>(what * 10 + rank);
  return integers ? integer_tensor(dtype, {num_rows, columns}, tensor_seed) : random_tensor(dtype, {num_rows, columns}, tensor_seed);
}

Tensor PairCase::weight(int rank) const {
  const uint64_t tensor_seed = seed * 1000 + 900 + static_cast<uint64_t>(rank);
  return integers ? integer_tensor(dtype, {experts, k, n}, tensor_seed) : random_tensor(dtype, {experts, k, n}, tensor_seed);
}

Tensor PairCase::bias(int rank) const { return rows(rank, 80, experts, n); }

std::string PairCase::to_string() const {
  return fmt::format("R {} e {} K {} N {} {} {} seed {}", num_ranks, experts, k, n, name(dtype), name_of(load), seed);
}

Tensor gathered(const PairCase& c, const std::vector<Tensor>& home_rows, int owner) {
  Tensor to = make_tensor(c.dtype, {c.num_expert_rows(owner), home_rows[0].view.shape[1]});
  for (int s = 0; s < c.num_ranks; ++s) {
    for_each_row(c, s, owner, [&](int64_t permuted, int64_t major) { copy_row(home_rows[static_cast<size_t>(s)], permuted, to, major); });
  }
  return to;
}

Tensor scattered(const PairCase& c, const std::vector<Tensor>& expert_rows, int home) {
  Tensor to = make_tensor(c.dtype, {c.num_home_rows(home), expert_rows[0].view.shape[1]});
  for (int d = 0; d < c.num_ranks; ++d) {
    for_each_row(c, home, d, [&](int64_t permuted, int64_t major) { copy_row(expert_rows[static_cast<size_t>(d)], major, to, permuted); });
  }
  return to;
}

Tensor copy_of(const ConstTensorView& view) {
  if (!view.defined()) return {};
  Tensor copy = view.num_dims == 3 ? make_tensor(view.dtype, {view.shape[0], view.shape[1], view.shape[2]})
                                   : make_tensor(view.dtype, {view.shape[0], view.shape[1]});
  for (int64_t i = 0; i < view.num_elements(); ++i) set(copy, i, get(view, i));
  return copy;
}

Tensor spread_out(const ConstTensorView& matrix, TensorView& view) {
  Tensor memory = make_tensor(matrix.dtype, {matrix.shape[0], 2 * matrix.shape[1] + 1});
  view = memory.view;
  view.shape[1] = matrix.shape[1];
  view.strides[1] = 2;
  for (int64_t i = 0; i < matrix.num_elements(); ++i) set(view, i, get(matrix, i));
  return memory;
}

Tensor stored_transposed(const ConstTensorView& weight, int i, int j, TensorView& view) {
  Tensor memory = copy_of(weight.transposed(i, j));
  view = memory.view;
  return memory;
}

std::string run_pair(const PairCase& c, const PairRun& run, const std::function<Status(const Context&, Group&)>& body) {
  return first_error(run_engine(run.engine, c.num_ranks, {}, [&](Group& group) -> Status {
    PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, Context::create({.threads = run.threads, .tile = run.tile}));
    if (run.delay_seed == 0) return body(*context, group);
    DelayedGroup delayed(group, run.delay_seed);
    return body(*context, delayed);
  }));
}

}  // namespace plait::test
