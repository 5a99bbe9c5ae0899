#pragma once
/// The fused pair: rows to their experts' ranks and times the experts' weights, and products home. docs/operators.md section 9.

#include <cstdint>
#include <span>

#include "plait/context.h"
#include "plait/group.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait {

struct AllToAllVGmmOptions {
  ConstTensorView bias = {};           ///< (e,N) of the operands' type or f32, or undefined
  ConstTensorView shared_x = {};       ///< (S,Ks), or undefined: no shared product
  ConstTensorView shared_weight = {};  ///< (Ks,Ns)
  bool trans_weight = false;           ///< the weight is given as (e,N,K)
  bool trans_shared_weight = false;    ///< the shared weight is given as (Ns,Ks)
  bool return_permuted = false;        ///< alltoallv_grouped_matmul only: the arrived rows too
  bool fused = true;                   ///< false: exchange, then matmul (or matmul, then exchange), same bits
};

struct AllToAllVGmmResult {
  Tensor y;
  Tensor shared_y;  ///< (S,Ns); undefined without a shared product
  Tensor permuted;  ///< (A,K) with return_permuted
};

/// y (A,N): the rows x (B,K) of all ranks for this rank's e experts, times weight (e,K,N) (+ bias). Index d*e + j of send_counts (R*e): rows
/// of x for local expert j of rank d; index s*e + j of recv_counts: rows that rank s has for local expert j of this rank. Rows of x lie in
/// this order; rows of y by local expert first, then by source rank. B = sum(send_counts), A = sum(recv_counts); any may be 0.
/// Collective; nothing of x is read by peers any more when it returns. x that begins a region of the group's window (the y of
/// grouped_matmul_alltoallv, for example) is not copied. On failure the group is aborted, so that no rank hangs.
/// Errors: counts that disagree between two ranks (naming both, the expert and both numbers), a rank that calls another operator or with
/// another type, K, N, e or flags, shapes that do not fit.
Result<AllToAllVGmmResult> alltoallv_grouped_matmul(const Context& context, Group& group, const ConstTensorView& x, const ConstTensorView& weight,
                                                    std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts,
                                                    const AllToAllVGmmOptions& options = {});

/// The way back: x (A,K), rows by local expert first, then by the rank they go to, times weight (e,K,N) (+ bias), written home: y (B,N), rows by
/// the rank they come from, then by its local expert. Index d*e + j of send_counts: rows of local expert j that go to rank d; index s*e + j
/// of recv_counts: rows that come from local expert j of rank s. A = sum(send_counts), B = sum(recv_counts). y lies in this rank's window.
Result<AllToAllVGmmResult> grouped_matmul_alltoallv(const Context& context, Group& group, const ConstTensorView& x, const ConstTensorView& weight,
                                                    std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts,
                                                    const AllToAllVGmmOptions& options = {});

/// Gradients of parameters, in the shapes in which the parameters are given. Undefined ones are skipped.
struct AllToAllVGmmGradients {
  TensorView weight = {};         ///< (e,K,N), or (e,N,K) with trans_weight
  TensorView bias = {};           ///< (e,N)
  TensorView shared_weight = {};  ///< (Ks,Ns), or (Ns,Ks) with trans_shared_weight; needs options.shared_x
  bool accumulate = false;        ///< they are f32 and are added to; an expert without rows is left as it is
};

/// What backward starts from.
struct AllToAllVGmmUpstream {
  ConstTensorView dy = {};         ///< of y's shape
  ConstTensorView dshared_y = {};  ///< (S,Ns), or undefined: nothing of the shared product
};

struct AllToAllVGmmInputGradients {
  Tensor dx;         ///< of x's shape
  Tensor dshared_x;  ///< (S,Ks), where dshared_y is given
};

/// Backward of alltoallv_grouped_matmul. `permuted` (A,K) is what forward returned; undefined where gradients.weight is. Counts and options are
/// those of forward. Collective.
Result<AllToAllVGmmInputGradients> alltoallv_grouped_matmul_backward(const Context& context, Group& group, const AllToAllVGmmUpstream& upstream,
                                                                     const ConstTensorView& permuted, const ConstTensorView& weight,
                                                                     std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts,
                                                                     const AllToAllVGmmGradients& gradients, const AllToAllVGmmOptions& options = {});

/// Backward of grouped_matmul_alltoallv; x (A,K) is forward's, undefined where gradients.weight is. Rows of dy (B,N) are read where they lie.
Result<AllToAllVGmmInputGradients> grouped_matmul_alltoallv_backward(const Context& context, Group& group, const AllToAllVGmmUpstream& upstream,
                                                                     const ConstTensorView& x, const ConstTensorView& weight,
                                                                     std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts,
                                                                     const AllToAllVGmmGradients& gradients, const AllToAllVGmmOptions& options = {});

}  // namespace plait
