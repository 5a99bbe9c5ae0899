#pragma once
/// The shared expert: an ordinary MLP over this rank's tokens, scaled by sigmoid(x . w) where the model has a gate. It needs no peer: fused
/// dispatchers run it as tiles where they would wait, after the others it runs as a whole.

#include <cstdint>
#include <optional>

#include "moe/call.h"
#include "moe/fused_tiles.h"
#include "moe/mlp.h"

namespace plait::moe {

/// Without a shared expert both do nothing and return an undefined tensor.
class SharedForward final : public FillerWork {
 public:
  /// x (T,H) in rows; all arguments must outlive it.
  SharedForward(LayerCall& call, const ConstTensorView& x);
  SharedForward(const SharedForward&) = delete;
  SharedForward& operator=(const SharedForward&) = delete;

  Status add_to(TileScheduler& scheduler) override;
  /// Its rows (T,H), before the gate; the gate's values are in state.shared_scale.
  Result<Tensor> finish(LayerState& state);

 private:
  bool wanted() const { return call_.config.shared_intermediate > 0; }
  Status run_unfused();

  LayerCall& call_;
  const ConstTensorView x_;
  const int64_t tokens_;
  Mlp mlp_;
  Tensor h_, row_;
  std::optional<ForwardTiles> tiles_;  ///< where a scheduler runs it
};

class SharedBackward final : public FillerWork {
 public:
  SharedBackward(LayerCall& call, const ConstTensorView& x, const LayerState& state, const ConstTensorView& dy, const LayerGradients& gradients);
  SharedBackward(const SharedBackward&) = delete;
  SharedBackward& operator=(const SharedBackward&) = delete;

  Status add_to(TileScheduler& scheduler) override;
  /// Its gradients are written; returns its part of dx (T,H).
  Result<Tensor> finish();

 private:
  bool wanted() const { return call_.config.shared_intermediate > 0; }
  MlpGradients mlp_gradients() const;
  Status make_room_for_forward();
  Status make_room();
  void through_gate(int64_t begin, int64_t end, int worker) const;
  ConstTensorView mlp_dy() const;
  Status run_unfused();

  LayerCall& call_;
  const ConstTensorView x_;
  const LayerState& state_;
  const ConstTensorView dy_;
  const LayerGradients& gradients_;
  const int64_t tokens_;
  Mlp mlp_;
  Tensor h_, row_;       ///< of forward: kept, or computed again; row_ only with a gate
  Tensor gate_dy_, dz_;  ///< through the gate: (T,H), (T,1) f32
  Tensor products_;      ///< a row of floats per thread
  Tensor g_, dh_, dx_;
  std::optional<ForwardTiles> forward_;
  std::optional<BackwardTiles> tiles_;  ///< where a scheduler runs it
};

}  // namespace plait::moe
