#pragma once
/// What a case computes on: rows of the global batch and, where the router does not decide, their routing. docs/measuring.md, "Inputs".

#include <cstdint>

#include "plait/config.h"
#include "plait/context.h"
#include "plait/layer.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait {

/// A stretch of the global batch: the tokens of rank 0, then those of rank 1, ... Token i is the same on any number of ranks.
struct TokenRange {
  int64_t first = 0, count = 0;
};
inline TokenRange rank_tokens(const Case& run_case, int rank) { return {rank * run_case.tokens, run_case.tokens}; }

struct CaseInputs {
  Tensor x, dy;         ///< (count,H), the case's type
  Tensor ids, weights;  ///< (count,k) i32 and f32; undefined where the router decides
  GivenRouting given() const { return {ids, weights}; }
};

/// x: from `run_case.input` (text: embedded bytes; .npy, .safetensors: hidden states, with expert ids where the file has them), else
/// random. dy is random always. With `skew` > 0 the ids follow Zipf's law. Errors: unreadable or unfit files, naming what does not fit.
Result<CaseInputs> make_inputs(const Context& context, const Case& run_case, TokenRange range);

/// ids (T,k): the k experts of each token are drawn without repetition, the expert at place r of a seeded order with a probability that
/// is proportional to 1 / (r+1)^exponent. `first_token` is the global index of token 0.
void zipf_ids(uint64_t seed, double exponent, int64_t num_experts, int64_t first_token, const TensorView& ids);
/// weights (T,k): random in [0.5, 1.5), divided by their sum over the token.
void random_weights(uint64_t seed, int64_t first_token, const TensorView& weights);

}  // namespace plait
