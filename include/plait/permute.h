#pragma once
/// permute and unpermute: tokens into expert order and back. docs/operators.md section 2.

#include <cstdint>
#include <span>
#include <vector>

#include "plait/context.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait {

/// Ids (T,k) i32 in [0,E) -> position (T*k) i32: stable order of expert id; counts (E) = rows per expert.
/// With `sentinel`, ids >= E take no part: position = -1. Errors name token, slot and value (and `rank` >= 0).
Result<std::vector<int64_t>> sort_by_expert(const Context& context, const ConstTensorView& ids, int64_t num_experts, bool sentinel,
                                            const TensorView& position, int rank = -1);

/// The same from a boolean routing map (T,E) u8: position has one item per true entry, token major, expert minor.
Result<std::vector<int64_t>> sort_by_map(const Context& context, const ConstTensorView& map, const TensorView& position);

/// Rows kept of `total`: 0 = all, n > 0 the first n, n < 0 all but the last -n (clamped).
int64_t num_kept_rows(int64_t total, int64_t num_out_rows);

/// rows[position[i]] = x[i / k]; positions < 0 or >= rows' count are skipped.
Status permute(const Context& context, const ConstTensorView& x, const ConstTensorView& position, int64_t k, const TensorView& rows);
/// dx[t] = sum over slots of drows[position[t*k+slot]], slots ascending; with ids (T,k) defined: the tree over [0, num_experts).
Status permute_backward(const Context& context, const ConstTensorView& drows, const ConstTensorView& position, int64_t k, const ConstTensorView& ids,
                        int64_t num_experts, const TensorView& dx);

/// y[t] = sum over slots of rows[position[t*k+slot]] * weights[t,slot] (weights (T,k) f32 or undefined: 1), slots ascending;
/// with ids (T,k) defined: the tree over expert ids of numerics.md section 4. Positions out of range contribute nothing.
Status unpermute(const Context& context, const ConstTensorView& rows, const ConstTensorView& position, int64_t k, const ConstTensorView& weights,
                 const ConstTensorView& ids, int64_t num_experts, const TensorView& y);
/// drows[position[i]] = dy[t] * weights[i], rounded; dweights[t,slot] = dot(dy[t], rows[position[i]]). Undefined outputs are skipped;
/// drows rows that no position names become zeros.
Status unpermute_backward(const Context& context, const ConstTensorView& dy, const ConstTensorView& rows, const ConstTensorView& position, int64_t k,
                          const ConstTensorView& weights, const TensorView& drows, const TensorView& dweights);

/// The routing-map pair: map (T,E) u8; weights and dweights are (T,E) f32, dweights 0 where the map is false.
Status permute_map(const Context& context, const ConstTensorView& x, const ConstTensorView& map, const ConstTensorView& position,
                   const TensorView& rows);
Status permute_map_backward(const Context& context, const ConstTensorView& drows, const ConstTensorView& map, const ConstTensorView& position,
                            const TensorView& dx);
Status unpermute_map(const Context& context, const ConstTensorView& rows, const ConstTensorView& map, const ConstTensorView& position,
                     const ConstTensorView& weights, const TensorView& y);
Status unpermute_map_backward(const Context& context, const ConstTensorView& dy, const ConstTensorView& rows, const ConstTensorView& map,
                              const ConstTensorView& position, const ConstTensorView& weights, const TensorView& drows, const TensorView& dweights);

}  // namespace plait
