#pragma once
/// One global batch through the layer: inputs, how the tokens are split over ranks, what each rank gets. The same for every engine.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plait/context.h"
#include "plait/group.h"
#include "plait/layer.h"
#include "support/test_tensors.h"

namespace plait::test {

/// Global tensors: all tokens in rank order, all experts.
struct LayerInputs {
  LayerConfig config;
  Tensor x, dy;         ///< (T,H)
  Tensor ids, weights;  ///< given routing (T,k); undefined: the router decides (or, for weights alone: all 1)
  Tensor router, router_bias, choice_bias, gate_up, gate_up_bias, down, down_bias, shared_gate_up, shared_down, shared_gate;

  int64_t num_tokens() const { return x.view.shape[0]; }
};

struct InputOptions {
  int64_t tokens = 0;
  uint64_t seed = 1;
  bool given_routing = false;  ///< random ids (an expert may occur twice in a token) and weights
  bool router_bias = false;
  bool choice_bias = false;
  bool integers = false;  ///< small whole numbers everywhere
};
LayerInputs make_inputs(const LayerConfig& config, const InputOptions& options);

/// A small layer: every size odd, none a multiple of a vector.
LayerConfig small_config(DType dtype);

/// How many tokens each rank has; as many items as ranks.
using TokenSplit = std::vector<int64_t>;

/// What one rank gets. Gradients are those of this rank's experts and its own part of the replicated parameters.
struct RankResult {
  Tensor y, dx, dweights;
  Tensor gate_up, gate_up_bias, down, down_bias;
  Tensor router, router_bias, shared_gate_up, shared_down, shared_gate;
  RouterLosses losses;
  Tensor ids, weights;  ///< (T,k): what forward routed by; not compared
};
/// "" where all that is defined on both sides has the same bits, else the first difference.
std::string difference(const RankResult& got, const RankResult& expected);

/// All ranks' results as one rank would have them: tokens and experts in rank order. Gradients of replicated parameters and losses, which
/// are a rank's own, are left out.
RankResult joined(const std::vector<RankResult>& ranks);

/// The parameters of one rank.
LayerWeights rank_weights(const LayerInputs& inputs, int rank, int num_ranks);
/// Its rows of a global tensor of tokens.
TensorView rank_rows(const Tensor& global, const TokenSplit& split, int rank);
GivenRouting rank_routing(const LayerInputs& inputs, const TokenSplit& split, int rank);

struct RankRunOptions {
  bool accumulate = false;
  DType gradient_type = DType::f32;
  float initial_gradient = 0;  ///< with accumulate: what the gradients hold before
  float loss_scale = 1.0F;
};
/// Results for one rank, filled with NaN (or, with accumulate, with the initial value): what layer_backward writes to.
RankResult make_rank_result(const LayerInputs& inputs, const TokenSplit& split, int rank, const RankRunOptions& options = {});
LayerGradients gradients_of(const RankResult& result, const RankRunOptions& options = {});

/// Forward and backward of one rank.
Status run_rank(const Context& context, Group& group, const LayerInputs& inputs, const TokenSplit& split, RankResult& result,
                const RankRunOptions& options = {});

/// Forward and backward of all ranks, as threads of this process. Where the inputs ask for alltoall, the fused dispatchers run too; a bit in
/// which one differs is an error.
Result<std::vector<RankResult>> run_layer(const LayerInputs& inputs, const TokenSplit& split,
                                          const ContextOptions& context = {.threads = 1, .kernel = {}}, const RankRunOptions& options = {});

/// "" where one global batch over these splits gives the same y, dx, dweights and expert gradients, to the bit; else the first difference.
std::string difference_across_splits(const LayerInputs& inputs, const std::vector<TokenSplit>& splits,
                                     const ContextOptions& context = {.threads = 1, .kernel = {}});

/// A body per rank, each with a Context of its own. Statuses in rank order.
std::vector<Status> run_with_contexts(int num_ranks, const ContextOptions& options, const std::function<Status(const Context&, Group&)>& body);

}  // namespace plait::test
