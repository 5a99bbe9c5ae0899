#pragma once
/// One batch through the fused pair on some ranks, and what each rank must get, from the definitions alone.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plait/alltoallv_gmm.h"
#include "support/test_tensors.h"

namespace plait::test {

/// Where rows go.
enum class Load { uneven, skewed, few_experts, empty_rank, one_row, nothing };
inline constexpr Load all_loads[] = {Load::uneven, Load::skewed, Load::few_experts, Load::empty_rank, Load::one_row, Load::nothing};

struct PairCase {
  int num_ranks = 1;
  int64_t experts = 1;  ///< of one rank
  int64_t k = 1, n = 1;
  DType dtype = DType::f32;
  Load load = Load::uneven;
  uint64_t seed = 1;
  bool integers = false;          ///< small whole numbers, so that all sums are exact
  std::vector<int64_t> counts{};  ///< (R,E): rows of each rank for each expert

  void fill_counts(int64_t largest);
  int64_t num_experts() const { return num_ranks * experts; }
  int64_t count(int source, int64_t expert) const { return counts[static_cast<size_t>(source * num_experts() + expert)]; }
  /// index d*e + j: rows of `rank` for local expert j of rank d.
  std::vector<int64_t> out_counts(int rank) const;
  /// index s*e + j: rows of rank s for local expert j of `rank`.
  std::vector<int64_t> arrive_counts(int rank) const;
  int64_t num_home_rows(int rank) const;
  int64_t num_expert_rows(int rank) const;
  std::vector<int64_t> expert_rows(int rank) const;

  /// Seeded tensors; `what` tells tensors of one rank apart.
  Tensor rows(int rank, int what, int64_t num_rows, int64_t columns) const;
  Tensor weight(int rank) const;  ///< (e,K,N)
  Tensor bias(int rank) const;    ///< (e,N)

  std::string to_string() const;
};

/// Permuted rows of all ranks as rank `owner` has them, expert major; and expert-major rows of all ranks as rank `home` gets them back.
Tensor gathered(const PairCase& c, const std::vector<Tensor>& home_rows, int owner);
Tensor scattered(const PairCase& c, const std::vector<Tensor>& expert_rows, int home);

/// A copy in memory of its own.
Tensor copy_of(const ConstTensorView& view);
/// The same elements with another layout behind them: columns spread out, or stored transposed.
Tensor spread_out(const ConstTensorView& matrix, TensorView& view);
Tensor stored_transposed(const ConstTensorView& weight, int i, int j, TensorView& view);

struct PairRun {
  Engine engine = Engine::threads;
  int threads = 1;
  uint64_t delay_seed = 0;  ///< 0: no delays
  TileShape tile = {};
};
/// body(context, group) on all ranks of a case; "" or the first error.
std::string run_pair(const PairCase& c, const PairRun& run, const std::function<Status(const Context&, Group&)>& body);

}  // namespace plait::test
