#pragma once
/// The fused pair inside: both operators and both backwards are one product whose rows travel before it or after it, with side products.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "plait/alltoallv_gmm.h"
#include "plait/counters.h"
#include "plait/routing.h"
#include "routing/row_access.h"

namespace plait::a2av {

/// Rows travel out to the experts before the product, or home after it.
enum class Way : uint8_t { out, home };

/// dw[j] = rows[j]^T * (the product's input rows)[j], and the sums of those input rows.
struct ExpertGradient {
  ConstTensorView rows;  ///< (A, columns of dw's rows), expert major
  TensorView dw;         ///< (e, those columns, K) or undefined
  TensorView dbias;      ///< (e,K) or undefined
};
/// y = x * weight.
struct SharedProduct {
  ConstTensorView x, weight;  ///< undefined: none
};
/// dw = x^T * dy.
struct SharedGradient {
  ConstTensorView x, dy;
  TensorView dw;  ///< undefined: none
};

struct Call {
  const Context& context;
  Group& group;
  std::string_view operation;
  Way way;
  Stage product;                           ///< what the matmul is counted as
  Stage travel;                            ///< and the rows on their way
  ConstTensorView x;                       ///< out: (B,K), permuted order; home: (A,K), expert major
  ConstTensorView weight;                  ///< (e,K,N)
  ConstTensorView bias;                    ///< (e,N) or undefined
  std::span<const int64_t> out_counts;     ///< R*e: this rank's rows per expert, seen from the rank that they belong to
  std::span<const int64_t> arrive_counts;  ///< R*e: rows of every rank for this rank's experts
  std::string flags;                       ///< what else ranks must agree on
  bool return_permuted = false;
  bool fused = true;
  ExpertGradient gradient = {};
  SharedProduct shared = {};
  SharedGradient shared_gradient = {};
  bool accumulate = false;
  std::string unfinished = {};  ///< after a failure: which tile waits for which rank

  int64_t num_home_rows() const;    ///< B
  int64_t num_expert_rows() const;  ///< A
  int64_t row_bytes() const { return weight.shape[1] * size_of(weight.dtype); }
  int64_t result_row_bytes() const { return weight.shape[2] * size_of(weight.dtype); }
};

/// All ranks' counts, agreed on.
Result<RoutingPlan> agree(const Call& call, std::span<const Region> publish, PublishedViews& views);
/// An undefined tensor without a shared product.
Result<Tensor> shared_result(const Call& call);

/// Operands are trusted.
Result<AllToAllVGmmResult> run_fused(Call& call);
Result<AllToAllVGmmResult> run_unfused(const Call& call);

}  // namespace plait::a2av
