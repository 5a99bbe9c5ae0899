#pragma once
/// The products of one fused call as chains of tiles.

#include <array>
#include <optional>
#include <vector>

#include "kernels/rows.h"
#include "ops/alltoallv_gmm.h"
#include "ops/dense_rows.h"
#include "ops/early_gradients.h"
#include "ops/matmul_tiles.h"
#include "routing/fused_call.h"

namespace plait::a2av {

struct TileOperands {
  kernels::Rows rows;      ///< A input rows, expert major, wherever they lie
  TensorView permuted;     ///< (A,K): where they are copied first, or undefined
  kernels::MutableRows y;  ///< A result rows, expert major
  TensorView shared_y;     ///< of the shared product
};

class PairTiles {
 public:
  /// All arguments must outlive it.
  PairTiles(Call& call, const RoutingPlan& plan, const TileOperands& operands) : call_(call), plan_(plan), operands_(operands) {}
  PairTiles(const PairTiles&) = delete;
  PairTiles& operator=(const PairTiles&) = delete;

  Status prepare();
  /// Runs all tiles. Home: results_there rises as soon as the result rows are written.
  Status run(const FusedSignals& signals);
  /// The product's input rows: the copied ones where they are copied.
  kernels::Rows rows() const;

 private:
  /// One chain: blocks of rows of a product, or the weight gradient of a group.
  struct Work {
    const MatmulTiles* product = nullptr;
    const ExpertBlock* block = nullptr;
    const WeightGradientTiles* gradient = nullptr;
    int64_t group = 0;
  };

  Status prepare_shared();
  void add(TileScheduler& scheduler, TileChain chain, const Work& work);
  void prepare_early(TileScheduler& scheduler, const std::vector<int>& expert_gates);
  void add_blocks(TileScheduler& scheduler, int results, const std::vector<int>& expert_gates);
  void add_gradients(TileScheduler& scheduler, const std::vector<int>& expert_gates);
  void add_shared(TileScheduler& scheduler);
  bool copies() const { return operands_.permuted.defined(); }
  void run_tile(int chain, const TileScheduler::TileAt& at) const;
  void copy_piece(const ExpertBlock& block, int64_t piece) const;

  Call& call_;
  const RoutingPlan& plan_;
  const TileOperands& operands_;
  std::vector<ExpertBlock> blocks_, shared_blocks_;
  std::optional<MatmulTiles> product_, shared_;
  std::optional<WeightGradientTiles> gradient_, shared_gradient_;
  std::optional<EarlyGradients> early_;
  DenseInput gradient_rows_, shared_x_, shared_gradient_x_, shared_gradient_dy_;
  std::array<int64_t, 1> shared_rows_{}, shared_gradient_rows_{};
  std::vector<Work> works_;  ///< one per chain
};

}  // namespace plait::a2av
