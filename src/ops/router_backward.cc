#include <algorithm>
#include <cmath>
#include <vector>

#include "base/float_mode.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "kernels/kernel_set.h"
#include "ops/router_check.h"
#include "ops/router_rows.h"
#include "plait/router.h"

namespace plait {
namespace {

using router_rows::as_bytes;
using router_rows::block_tokens;
using router_rows::chosen_softmax;
using router_rows::dense_row;
using router_rows::load_gradient;
using router_rows::norm_divisor;
using router_rows::num_blocks;
using router_rows::RowScratch;
using router_rows::scatter_row;
using router_rows::sigmoid_epsilon;
using router_rows::softmax_exps;
using router_rows::softmax_floor;
using router_rows::SoftmaxRow;

class RouteBackward {
 public:
  RouteBackward(const Context& context, const RouterConfig& config, const ConstTensorView& logits, const ConstTensorView& scores,
                const ConstTensorView& ids, const ConstTensorView& weights, const ConstTensorView& dweights, const TensorView& dlogits)
      : context_(context),
        config_(config),
        ew_(*context.kernels().elementwise),
        logits_(logits),
        scores_(scores),
        ids_(ids),
        weights_(weights),
        dweights_(dweights),
        dlogits_(dlogits) {}

  Status prepare(float loss_scale);
  void run() {
    context_.pool().parallel_for(num_blocks(logits_.shape[0]), [this](int64_t block, int worker) { block_gradient(block, worker); });
  }

 private:
  struct Worker {
    std::vector<int32_t> ids;                                   ///< (k)
    std::vector<float> weights, dweights, chosen;               ///< (k)
    float *logits, *scores, *dscores, *dlogits, *exps, *spare;  ///< (E); `spare` stages strided rows
  };

  void block_gradient(int64_t block, int worker);
  void read_token(int64_t t, Worker& w) const;
  void add_weight_gradient(Worker& w) const;
  void add_topk_softmax_gradient(Worker& w) const;
  void through_softmax(Worker& w) const;
  void through_sigmoid(Worker& w) const;
  void add_z_gradient(Worker& w) const;

  const Context& context_;
  const RouterConfig& config_;
  const kernels::ElementwiseKernels& ew_;
  ConstTensorView logits_, scores_, ids_, weights_, dweights_;
  TensorView dlogits_;
  int64_t num_experts_ = config_.num_experts;
  std::vector<float> dmean_;  ///< (E): gradient of the load-balancing loss for each token's (normalised) score
  float z_factor_ = 0;        ///< times logsumexp * softmax: gradient of the z-loss
  std::vector<Worker> workers_;
  RowScratch scratch_;
};

Status RouteBackward::prepare(float loss_scale) {
  FloatMode mode;
  PLAIT_ASSIGN_OR_RETURN(std::vector<int64_t> chosen_by, router_check::count_ids(ids_, num_experts_));
  PLAIT_ASSIGN_OR_RETURN(scratch_, RowScratch::take(context_, num_experts_, 6));
  auto tokens = static_cast<float>(logits_.shape[0]);
  dmean_.assign(static_cast<size_t>(num_experts_), 0.0F);
  if (config_.aux_loss != 0) {
    load_gradient(config_, chosen_by, logits_.shape[0], dmean_.data());
    for (float& d : dmean_) d = d * (config_.aux_loss * loss_scale) / tokens;
  }
  z_factor_ = 2.0F * (config_.z_loss * loss_scale) / tokens;
  auto k = static_cast<size_t>(config_.top_k);
  for (int i = 0; i < context_.threads(); ++i) {
    workers_.push_back({std::vector<int32_t>(k), std::vector<float>(k), std::vector<float>(k), std::vector<float>(k), scratch_.row(i, 0),
                        scratch_.row(i, 1), scratch_.row(i, 2), scratch_.row(i, 3), scratch_.row(i, 4), scratch_.row(i, 5)});
  }
  return {};
}

/// Gradient of the scores (of the logits for topk_softmax's weights), then through the score function, then the z-loss.
void RouteBackward::block_gradient(int64_t block, int worker) {
  Worker& w = workers_[static_cast<size_t>(worker)];
  int64_t end = std::min((block + 1) * block_tokens, logits_.shape[0]);
  for (int64_t t = block * block_tokens; t < end; ++t) {
    read_token(t, w);
    std::copy(dmean_.begin(), dmean_.end(), w.dscores);
    if (config_.score == ScoreFunction::sigmoid) {
      through_sigmoid(w);
    } else {
      if (config_.score == ScoreFunction::softmax) add_weight_gradient(w);
      through_softmax(w);
      if (config_.score == ScoreFunction::topk_softmax) add_topk_softmax_gradient(w);
    }
    if (z_factor_ != 0) add_z_gradient(w);
    ew_.store(dlogits_.dtype, w.dlogits, as_bytes(w.exps), num_experts_);
    scatter_row(as_bytes(w.exps), dlogits_, t);
  }
}

void RouteBackward::read_token(int64_t t, Worker& w) const {
  int64_t k = config_.top_k;
  auto copy = [&](const ConstTensorView& from, void* to) {
    std::memcpy(to, dense_row(from, t, as_bytes(w.spare)), static_cast<size_t>(from.shape[1] * size_of(from.dtype)));
  };
  ew_.load(logits_.dtype, dense_row(logits_, t, as_bytes(w.spare)), w.logits, num_experts_);
  copy(scores_, w.scores);
  copy(ids_, w.ids.data());
  copy(weights_, w.weights.data());
  if (dweights_.defined()) {
    copy(dweights_, w.dweights.data());
  } else {
    std::fill_n(w.dweights.data(), k, 0.0F);
  }
}

/// dscores[id] += scaling * dweight / D - (sum of dweight * weight) / D, with the divisor D held at 1 where weights are not normalised.
void RouteBackward::add_weight_gradient(Worker& w) const {
  int64_t k = config_.top_k;
  float divisor = 1;
  float shared = 0;
  if (config_.norm_topk) {
    for (int64_t s = 0; s < k; ++s) w.chosen[static_cast<size_t>(s)] = w.scores[w.ids[static_cast<size_t>(s)]];
    float sum = ew_.sum(w.chosen.data(), k);
    if (sum <= softmax_floor) return;  // all chosen scores are 0: so are the weights, and nothing flows through 0 scores
    divisor = norm_divisor(config_, sum);
    shared = ew_.dot(DType::f32, as_bytes(w.dweights.data()), as_bytes(w.weights.data()), k);
  }
  for (size_t s = 0; s < w.ids.size(); ++s) w.dscores[w.ids[s]] += (config_.scaling * w.dweights[s] - shared) / divisor;
}

/// The weights are a softmax over the chosen logits alone: dlogits[id] += q * (scaling * dweight - sum of dweight * weight).
void RouteBackward::add_topk_softmax_gradient(Worker& w) const {
  int64_t k = config_.top_k;
  if (!chosen_softmax(ew_, w.logits, w.ids.data(), w.chosen.data(), k)) return;
  float shared = ew_.dot(DType::f32, as_bytes(w.dweights.data()), as_bytes(w.weights.data()), k);
  for (size_t s = 0; s < w.ids.size(); ++s) w.dlogits[w.ids[s]] += w.chosen[s] * (config_.scaling * w.dweights[s] - shared);
}

/// dlogits = p * (dscores - dot(dscores, p)).
void RouteBackward::through_softmax(Worker& w) const {
  float mean = ew_.dot(DType::f32, as_bytes(w.dscores), as_bytes(w.scores), num_experts_);
  for (int64_t j = 0; j < num_experts_; ++j) w.dlogits[j] = w.scores[j] * (w.dscores[j] - mean);
}

/// The load-balancing loss sees scores divided by their sum D: its part is (dmean - dot(dmean, s) / D) / D. Then dlogits = ds * s(1-s).
void RouteBackward::through_sigmoid(Worker& w) const {
  if (config_.aux_loss != 0) {
    float divisor = ew_.sum(w.scores, num_experts_) + sigmoid_epsilon;
    float mean = ew_.dot(DType::f32, as_bytes(w.dscores), as_bytes(w.scores), num_experts_) / divisor;
    for (int64_t j = 0; j < num_experts_; ++j) w.dscores[j] = (w.dscores[j] - mean) / divisor;
  }
  add_weight_gradient(w);
  for (int64_t j = 0; j < num_experts_; ++j) w.dlogits[j] = w.dscores[j] * (w.scores[j] * (1.0F - w.scores[j]));
}

void RouteBackward::add_z_gradient(Worker& w) const {
  SoftmaxRow row = softmax_exps(ew_, w.logits, w.exps, num_experts_);
  float log_sum = 0;
  ew_.log(&row.sum, &log_sum, 1);
  float factor = z_factor_ * (row.max + log_sum);
  for (int64_t j = 0; j < num_experts_; ++j) w.dlogits[j] += factor * (w.exps[j] / row.sum);
}

}  // namespace

Status route_backward(const Context& context, const RouterConfig& config, const ConstTensorView& logits, const ConstTensorView& scores,
                      const ConstTensorView& ids, const ConstTensorView& weights, const ConstTensorView& dweights, float loss_scale,
                      const TensorView& dlogits) {
  PLAIT_RETURN_IF_ERROR(config.validate());
  PLAIT_RETURN_IF_ERROR(router_check::backward_shapes(config, logits, scores, ids, weights, dweights, dlogits));
  if (logits.shape[0] == 0) return {};
  RouteBackward backward(context, config, logits, scores, ids, weights, dweights, dlogits);
  PLAIT_RETURN_IF_ERROR(backward.prepare(loss_scale));
  backward.run();
  return {};
}

}  // namespace plait
