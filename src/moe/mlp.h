#pragma once
/// The MLP that the routed experts and the shared expert have in common: one pair of matrices per group of rows. docs/numerics.md section 5.

#include <cstdint>
#include <span>

#include "moe/call.h"
#include "plait/grouped_matmul.h"

namespace plait::moe {

/// Views on the parameters of G MLPs and the rows that each of them gets. All rows are in the order of the groups.
struct Mlp {
  const Context& context;
  const Activation& activation;
  ConstTensorView gate_up, gate_up_bias;  ///< (G,H,2I), (G,2I) or undefined
  ConstTensorView down, down_bias;        ///< (G,I,H), (G,H) or undefined
  std::span<const int64_t> group_rows;    ///< G
  GroupedMatmulOptions options;

  DType dtype() const { return gate_up.dtype; }
  int64_t intermediate() const { return down.shape[1]; }

  /// h (A,2I) = x * gate_up (+ bias).
  Result<Tensor> hidden(const ConstTensorView& x) const;
  /// act (A,I).
  Result<Tensor> activated(const ConstTensorView& h) const;
  /// out (A,H) = act * down (+ bias).
  Status project(const ConstTensorView& act, const TensorView& out) const;

  /// g (A,I) = dy * down^T.
  Result<Tensor> project_backward(const ConstTensorView& dy) const;
  /// dx (A,H) = dh * gate_up^T.
  Status hidden_backward(const ConstTensorView& dh, const TensorView& dx) const;
};

/// This rank's experts, with the rows that a plan brings them.
Mlp routed_experts(const LayerCall& call, const RoutingPlan& plan);

/// Gradients of an Mlp's parameters. Undefined ones are skipped.
struct MlpGradients {
  TensorView gate_up, gate_up_bias, down, down_bias;
  bool accumulate = false;
};
/// dW_down = act_w^T dy; db_down = sum of weight * dy (`weights` (A,1) f32; needed for the bias only).
Status project_gradients(const Mlp& mlp, const ConstTensorView& act_w, const ConstTensorView& dy, const ConstTensorView& weights,
                         const MlpGradients& gradients);
/// dW_gate_up = x^T dh; db_gate_up = sum of dh.
Status hidden_gradients(const Mlp& mlp, const ConstTensorView& x, const ConstTensorView& dh, const MlpGradients& gradients);

/// dh (A,2I) = activation'(h, weight * g); act_w (A,I) = round(weight * act); dweights (A,1) = dot(act, g) (+ dot(down_bias, dy)).
struct ActivationGradient {
  Tensor dh;
  Tensor act_w;
};
/// `weights` (A,1) f32 or undefined: all 1. `dweights` (A,1) f32 or undefined: skipped. `dy` is read for the bias' part of dweights only.
Result<ActivationGradient> activation_gradient(const Mlp& mlp, const ConstTensorView& h, const ConstTensorView& g, const ConstTensorView& dy,
                                               const ConstTensorView& weights, const TensorView& dweights);

}  // namespace plait::moe
