#pragma once
/// Shared by the router's forward and backward: rows of any stride, scratch of one thread, softmax of a row.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/elementwise.h"
#include "plait/context.h"
#include "plait/router.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait::router_rows {

/// Tokens per task. The losses are summed in blocks of as many tokens, so this number is part of their definition.
inline constexpr int64_t block_tokens = 32;

inline int64_t num_blocks(int64_t num_tokens) { return (num_tokens + block_tokens - 1) / block_tokens; }

/// The elements of row `t` of a two-dimensional view, contiguous: where they lie, or gathered into `staging`.
inline const std::byte* dense_row(const ConstTensorView& view, int64_t t, std::byte* staging) {
  if (view.strides[1] == 1 || view.shape[1] == 1) return view.at(t);
  int64_t bytes = size_of(view.dtype);
  for (int64_t j = 0; j < view.shape[1]; ++j) std::memcpy(staging + j * bytes, view.at(t, j), static_cast<size_t>(bytes));
  return staging;
}

/// The opposite: writes contiguous elements to row `t` of any stride.
inline void scatter_row(const std::byte* row, const TensorView& view, int64_t t) {
  int64_t bytes = size_of(view.dtype);
  if (view.strides[1] == 1 || view.shape[1] == 1) {
    std::memcpy(view.at(t), row, static_cast<size_t>(view.shape[1] * bytes));
    return;
  }
  for (int64_t j = 0; j < view.shape[1]; ++j) std::memcpy(view.at(t, j), row + j * bytes, static_cast<size_t>(bytes));
}

inline std::byte* as_bytes(void* p) { return static_cast<std::byte*>(p); }
inline const std::byte* as_bytes(const void* p) { return static_cast<const std::byte*>(p); }

/// Rows of E floats, cut from one arena buffer; every thread has `rows_per_worker` of them, each on cache lines of its own.
class RowScratch {
 public:
  static Result<RowScratch> take(const Context& context, int64_t num_experts, int64_t rows_per_worker) {
    RowScratch s;
    s.row_floats_ = (num_experts + 15) / 16 * 16;
    s.rows_per_worker_ = rows_per_worker;
    Result<Buffer> buffer = context.scratch(context.threads() * rows_per_worker * s.row_floats_ * size_of(DType::f32));
    if (!buffer.ok()) return buffer.status();
    s.buffer_ = buffer.take();
    return s;
  }
  float* row(int worker, int64_t i) const { return reinterpret_cast<float*>(buffer_.get()) + (worker * rows_per_worker_ + i) * row_floats_; }

 private:
  Buffer buffer_;
  int64_t row_floats_ = 0;
  int64_t rows_per_worker_ = 0;
};

/// exps = exp(logits - max(logits)); their sum. Logits hold no NaN and no +inf; where all are -inf, max says so and the rest is NaN.
struct SoftmaxRow {
  float max;
  float sum;
};
inline SoftmaxRow softmax_exps(const kernels::ElementwiseKernels& ew, const float* logits, float* exps, int64_t n) {
  float max = ew.max(logits, n);
  for (int64_t j = 0; j < n; ++j) exps[j] = logits[j] - max;
  ew.exp(exps, exps, n);
  return {max, ew.sum(exps, n)};
}

/// scores = 1 / (1 + exp(-logits)); exactly 0 where exp overflows.
inline void sigmoid(const kernels::ElementwiseKernels& ew, const float* logits, float* scores, int64_t n) {
  for (int64_t j = 0; j < n; ++j) scores[j] = -logits[j];
  ew.exp(scores, scores, n);
  for (int64_t j = 0; j < n; ++j) scores[j] = 1.0F / (1.0F + scores[j]);
}

/// out (k) = softmax over the logits of `ids`. False where all of them are -inf.
inline bool chosen_softmax(const kernels::ElementwiseKernels& ew, const float* logits, const int32_t* ids, float* out, int64_t k) {
  float max = logits[ids[0]];
  for (int64_t s = 0; s < k; ++s) {
    out[s] = logits[ids[s]];
    max = out[s] > max ? out[s] : max;
  }
  if (std::isinf(max)) return false;
  for (int64_t s = 0; s < k; ++s) out[s] -= max;
  ew.exp(out, out, k);
  float sum = ew.sum(out, k);
  for (int64_t s = 0; s < k; ++s) out[s] /= sum;
  return true;
}

/// What chosen scores are divided by (config.norm_topk).
inline constexpr float sigmoid_epsilon = 1e-20F;
inline constexpr float softmax_floor = 0x1p-126F;
inline float norm_divisor(const RouterConfig& config, float sum) {
  if (config.score == ScoreFunction::sigmoid) return sum + sigmoid_epsilon;
  return sum > softmax_floor ? sum : softmax_floor;
}

/// gradient (E) = E * f_g (times k in transformers' scale): the derivative of the load-balancing loss with respect to P_g, and the loss
/// is its dot product with P. f_g is the share of the `num_tokens * k` entries that chose g.
inline void load_gradient(const RouterConfig& config, std::span<const int64_t> chosen_by, int64_t num_tokens, float* gradient) {
  auto entries = static_cast<float>(num_tokens * config.top_k);
  auto scale = static_cast<float>(config.num_experts) * (config.aux_loss_times_k ? static_cast<float>(config.top_k) : 1.0F);
  for (size_t g = 0; g < chosen_by.size(); ++g) gradient[g] = scale * (static_cast<float>(chosen_by[g]) / entries);
}

}  // namespace plait::router_rows
