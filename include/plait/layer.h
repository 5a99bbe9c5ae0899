#pragma once
/// The MoE layer under expert parallelism: forward and backward, with every dispatcher the same bits. docs/operators.md section 8.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "plait/activation.h"
#include "plait/context.h"
#include "plait/group.h"
#include "plait/router.h"
#include "plait/routing.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait {

namespace moe {
struct DispatchedRows;
}

enum class Dispatcher : uint8_t { eager, alltoall, allgather, mc2, automatic };
std::string_view name(Dispatcher dispatcher);
/// "eager", "alltoall", "allgather", "mc2", "auto"; an unknown name is an error that lists them.
Result<Dispatcher> parse_dispatcher(std::string_view text);
/// For help texts and messages.
std::span<const Dispatcher> all_dispatchers();

/// How allgather sends results home. exact: sums of whole nodes of the token's tree, the bits of numerics.md section 4. reduced: one sum per
/// token and rank whatever the tree; fewer bytes, other rounding, outside the bit contract.
enum class Combine : uint8_t { exact, reduced };
std::string_view name(Combine combine);
Result<Combine> parse_combine(std::string_view text);

struct LayerConfig {
  int64_t hidden = 0;        ///< H
  int64_t intermediate = 0;  ///< I
  DType dtype = DType::bf16;
  RouterConfig router;      ///< E, k, scores, losses
  bool router_f32 = false;  ///< logits in float32 from float32 copies of x and the router's weight
  bool sentinel = false;    ///< given ids >= E contribute nothing
  Activation activation;
  bool expert_bias = false;
  int64_t shared_intermediate = 0;  ///< 0: no shared expert
  bool shared_gate = false;         ///< shared expert scaled by sigmoid(x . w)
  Dispatcher dispatcher = Dispatcher::alltoall;
  Combine combine = Combine::exact;
  bool recompute = false;  ///< keep only x: h is computed again in backward, same bits

  /// False where results may have other bits than the definition (numerics.md section 8).
  bool in_contract() const { return combine == Combine::exact || dispatcher != Dispatcher::allgather; }
  /// Names every value that breaks a rule. `num_ranks` is the group's size.
  Status validate(int num_ranks) const;
};

/// Views of one rank's parameters. Type = config.dtype unless said otherwise. Any strides for the three-dimensional ones.
struct LayerWeights {
  ConstTensorView router;          ///< (E,H)
  ConstTensorView router_bias;     ///< (E) f32 or undefined: added to the logits (gpt-oss) -- rounded with them
  ConstTensorView choice_bias;     ///< (E) f32 or undefined: steers the choice only
  ConstTensorView gate_up;         ///< (e,H,2I), or (e,H,I) ungated
  ConstTensorView gate_up_bias;    ///< (e,2I) or undefined
  ConstTensorView down;            ///< (e,I,H)
  ConstTensorView down_bias;       ///< (e,H) or undefined
  ConstTensorView shared_gate_up;  ///< (H,2Is)
  ConstTensorView shared_down;     ///< (Is,H)
  ConstTensorView shared_gate;     ///< (H)
};

/// Gradients: float32 with `accumulate` (added to), or the parameter's type or float32 without. Undefined ones are skipped.
/// The replicated ones (router, shared) are this rank's part; the trainer reduces them in rank order.
struct LayerGradients {
  TensorView router, router_bias, gate_up, gate_up_bias, down, down_bias, shared_gate_up, shared_down, shared_gate;
  bool accumulate = true;
};

/// Routing given from outside instead of the router (as the transformers layer does). Undefined ids: the router decides.
struct GivenRouting {
  ConstTensorView ids;      ///< (T,k) i32
  ConstTensorView weights;  ///< (T,k) f32 or undefined: all 1
};

/// What backward needs, owned by the caller between forward and backward. Its window regions go back when it is dropped.
struct LayerState {
  Dispatcher dispatcher = Dispatcher::alltoall;  ///< the one that forward used; backward uses it too
  std::string dispatcher_reason;                 ///< why auto chose it
  RoutingPlan plan;
  Tensor ids, weights, scores, logits, position;  ///< (T,k), (T,k), (T,E), (T,E), (T*k)
  bool router_used = false;
  Tensor rows;                                            ///< (A,H): dispatched rows, expert major; undefined where they are read in place
  Tensor h;                                               ///< (A,2I); undefined with recompute
  std::shared_ptr<const moe::DispatchedRows> dispatched;  ///< where the entries' rows are, if they are read in place
  Tensor shared_h, shared_row, shared_scale;              ///< (T,2Is), (T,H), (T) f32
  RouterLosses losses;
};

/// x (T,H) -> y (T,H). T >= 0 and may differ from rank to rank; x in any strides. Collective: all ranks of the group call it.
/// On failure the group is aborted, so that no rank hangs.
Result<LayerState> layer_forward(const Context& context, Group& group, const LayerConfig& config, const LayerWeights& weights,
                                 const ConstTensorView& x, const TensorView& y, const GivenRouting& given = {});

/// dy (T,H) -> dx (T,H), the gradients, and, with given routing, dweights (T,k) f32 (undefined: skipped). Collective.
Status layer_backward(const Context& context, Group& group, const LayerConfig& config, const LayerWeights& weights, const ConstTensorView& x,
                      const LayerState& state, const ConstTensorView& dy, const TensorView& dx, const LayerGradients& gradients,
                      const TensorView& dweights = {}, float loss_scale = 1.0F);

}  // namespace plait
