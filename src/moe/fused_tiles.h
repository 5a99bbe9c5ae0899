#pragma once
/// An MLP over grouped rows that lie anywhere, as chains of tiles: what the fused dispatchers run between publishing their rows and summing the
/// results. docs/numerics.md section 5.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "moe/activation_rows.h"
#include "moe/call.h"
#include "moe/fused_blocks.h"
#include "moe/mlp.h"
#include "ops/early_gradients.h"
#include "ops/matmul_tiles.h"
#include "routing/fused_call.h"
#include "routing/row_access.h"

namespace plait::moe {

/// Which part of the layer an MLP's tiles belong to. Those of the shared expert fill gaps, and are all counted as its stage.
enum class TileRole : uint8_t { routed, shared };

/// x rows -> h -> act -> result rows.
struct FusedForward {
  kernels::Rows x;
  kernels::MutableRows results;
  TensorView h;  ///< (A,2I)
};

class ForwardTiles {
 public:
  /// `mlp`'s group_rows and all memory must outlive it.
  static Result<ForwardTiles> create(const Mlp& mlp, const FusedForward& rows, TileRole role);
  int64_t max_rows() const { return hidden_.max_rows(); }
  /// Chains that count down `results` at their ends. It must stay where it is from then on.
  void add_to(TileScheduler& scheduler, std::vector<BlockChain> chains, int results);

 private:
  ForwardTiles(const Mlp& mlp, const FusedForward& rows, TileRole role) : mlp_(mlp), rows_(rows), role_(role) {}
  void run_task(size_t number, const TileScheduler::TileAt& at) const;
  void activate(int64_t begin, int64_t end) const;

  Mlp mlp_;
  FusedForward rows_;
  TileRole role_;
  Tensor act_;  ///< (A,I)
  MatmulTiles hidden_, project_;
  std::vector<BlockChain> chains_;
};

/// dy rows -> g -> dh, act_w, dweights -> dx rows; behind them the weight gradients, while the dx rows' readers go on.
struct FusedBackward {
  kernels::Rows x, dy;
  kernels::MutableRows dx, dweights;
  const float* weights = nullptr;  ///< (A); null: all 1, and no dweights
  TensorView h;                    ///< (A,2I): given, or room for it
  TensorView g;                    ///< (A,I): room; holds act_w in the end
  TensorView dh;                   ///< (A,2I): room
};

class BackwardTiles {
 public:
  struct Options {
    TileRole role = TileRole::routed;
    bool hidden_again = false;                                           ///< h is computed from x first
    std::function<void(int64_t begin, int64_t end, int worker)> before;  ///< or this runs first, on all rows
    int64_t early_bytes = 0;                                             ///< of accumulators for weight gradients that begin early
  };
  /// As for ForwardTiles. Bias gradients are not among the tiles.
  static Result<BackwardTiles> create(const Mlp& mlp, const FusedBackward& rows, const MlpGradients& gradients, Options options);
  int64_t max_rows() const { return g_->max_rows(); }
  /// Chains behind the gate `behind` that count down `results` when their dx rows are written. `first_expert` is the global number of
  /// group 0. It must stay where it is from then on.
  void add_to(TileScheduler& scheduler, std::vector<BlockChain> chains, int results, int behind, int64_t first_expert);

 private:
  BackwardTiles(const Mlp& mlp, Options options) : mlp_(mlp), options_(std::move(options)) {}
  enum class Step : uint8_t { hidden, before, g, activation, dx };
  struct GradientTask {
    const WeightGradientTiles* tiles;
    int64_t group, task;
  };
  using Tasks = std::pair<size_t, size_t>;  ///< of gradient_tasks_: begin and end

  Stage stage(Stage routed) const { return options_.role == TileRole::shared ? Stage::shared_expert : routed; }
  std::vector<int> gates_of_groups(TileScheduler& scheduler) const;
  void prepare_early(TileScheduler& scheduler, const std::vector<int>& gates);
  TileChain block_chain(const BlockChain& blocks) const;
  void add_gradients(TileScheduler& scheduler, const std::vector<int>& gates, int64_t first_expert);
  void run_task(size_t number, const TileScheduler::TileAt& at) const;
  void run_gradients(Tasks tasks, const TileScheduler::TileAt& at) const;

  Mlp mlp_;
  Options options_;
  std::vector<Step> steps_;
  std::vector<BlockChain> chains_;
  std::optional<MatmulTiles> hidden_, g_, dx_;
  std::optional<WeightGradientTiles> down_, gate_up_;
  std::unique_ptr<EarlyGradients> early_;
  std::optional<ActivationRows> activation_;
  Buffer scratch_;
  std::vector<GradientTask> gradient_tasks_;
};

/// Runs the routed experts' tiles, with call.filler in their gaps where `fill` says so.
enum class Gaps : uint8_t { left, filled };
Status run_tiles(LayerCall& call, const RoutingPlan& plan, const FusedForward& rows, const FusedSignals& signals, Gaps gaps);
Status run_tiles(LayerCall& call, const RoutingPlan& plan, const FusedBackward& rows, const LayerGradients& gradients, const FusedSignals& signals,
                 Gaps gaps);

}  // namespace plait::moe
