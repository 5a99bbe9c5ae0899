#pragma once
/// The routed experts of an MoE layer in one call, with routing from outside. docs/operators.md section 10.

#include <cstdint>

#include "plait/context.h"
#include "plait/group.h"
#include "plait/layer.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait {

/// Weights of this rank's e experts, or of all E, of which this rank reads its own. Any strides.
struct FusedExpertWeights {
  ConstTensorView up;         ///< (e or E,H,I)
  ConstTensorView gate = {};  ///< of up's shape; undefined with an ungated activation
  ConstTensorView down;       ///< (e or E,I,H)
};

struct FusedExpertOptions {
  int64_t num_experts = 0;  ///< E; 0: the weights are those of this rank, E = R*e
  Activation activation;    ///< columns are [gate | up], never interleaved
  bool sentinel = false;    ///< ids >= E contribute nothing
  bool recompute = false;
  Dispatcher dispatcher = Dispatcher::mc2;
};

/// What backward needs besides the operands.
struct FusedExpertState {
  LayerState layer;
  Tensor gate_up;  ///< (e,H,2I), where gate and up do not lie side by side in one matrix
};

struct FusedExpertResult {
  Tensor y;  ///< of x's shape
  FusedExpertState state;
};

/// x (..., H), expert_ids (..., k) i32, expert_weights (..., k) f32 or undefined (all 1): y = sum over the chosen experts of weight * expert(x),
/// the same bits as layer_forward with given routing. Up to four dimensions. Separate gate and up weights are joined to [gate | up], one
/// copy per call, unless they are the halves of one matrix already. Collective; on failure the group is aborted.
/// Errors: as layer_forward; a number of weights that is neither e nor E.
Result<FusedExpertResult> mc2_fused_expert(const Context& context, Group& group, const ConstTensorView& x, const FusedExpertWeights& weights,
                                           const ConstTensorView& expert_ids, const ConstTensorView& expert_weights = {},
                                           const FusedExpertOptions& options = {});

/// In the shapes of the weights; of all E, only this rank's part is written. Undefined ones are skipped, gate and up together.
struct FusedExpertGradients {
  TensorView up = {}, gate = {}, down = {};
  TensorView expert_weights = {};  ///< (T,k) f32: written, never added to
  bool accumulate = false;         ///< up, gate and down are f32 and are added to
};

/// dx of x's shape. The operands are those of forward.
Result<Tensor> mc2_fused_expert_backward(const Context& context, Group& group, const ConstTensorView& x, const FusedExpertWeights& weights,
                                         const FusedExpertState& state, const ConstTensorView& dy, const FusedExpertGradients& gradients,
                                         const FusedExpertOptions& options = {});

}  // namespace plait
