#include "plait/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/float_mode.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "kernels/kernel_set.h"
#include "ops/router_check.h"
#include "ops/router_choice.h"
#include "ops/router_rows.h"

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
using router_rows::sigmoid;
using router_rows::sigmoid_epsilon;
using router_rows::softmax_exps;
using router_rows::SoftmaxRow;

constexpr int64_t no_token = std::numeric_limits<int64_t>::max();

class RouteForward {
 public:
  RouteForward(const Context& context, const RouterConfig& config, const ConstTensorView& logits, const TensorView& ids, const TensorView& weights,
               const TensorView& scores)
      : context_(context), config_(config), ew_(*context.kernels().elementwise), logits_(logits), ids_(ids), weights_(weights), scores_(scores) {}

  Status prepare(const ConstTensorView& bias);
  void run();
  /// The first token that cannot be routed, or no_token.
  int64_t fault() const { return *std::min_element(fault_.begin(), fault_.end()); }
  std::string describe_fault(int64_t token) const;
  RouterLosses losses() const;

 private:
  struct Worker {
    ExpertChooser chooser;
    std::vector<int64_t> chosen_by;   ///< (E): entries that chose each expert
    std::vector<float> chosen;        ///< (k): scores, then weights
    std::vector<int32_t> ids;         ///< (k)
    float *logits, *scores, *choice;  ///< (E)
    std::byte* staging;               ///< (E) elements
  };
  /// Softmax statistics of a block's tokens: logsumexp = max + log(sum).
  struct BlockStats {
    float max[block_tokens], sum[block_tokens];
  };

  void route_block(int64_t block, int worker);
  bool route_token(int64_t t, Worker& w, float* mean_scores, float* max, float* sum);
  void score_sums(const float* scores, Worker& w, float* block_sums) const;
  bool weigh(const float* scores, Worker& w) const;
  /// Row `block` of the sums over its tokens: E scores, then the sum of logsumexp squared.
  float* block_sums(int64_t block) const { return reinterpret_cast<float*>(sums_.get()) + block * (num_experts_ + 1); }

  const Context& context_;
  const RouterConfig& config_;
  const kernels::ElementwiseKernels& ew_;
  ConstTensorView logits_;
  TensorView ids_, weights_, scores_;
  int64_t num_tokens_ = logits_.shape[0];
  int64_t num_experts_ = config_.num_experts;
  std::vector<float> bias_;  ///< (E), or empty
  std::vector<Worker> workers_;
  std::vector<int64_t> fault_;  ///< per thread
  RowScratch scratch_;
  Buffer sums_;
};

Status RouteForward::prepare(const ConstTensorView& bias) {
  PLAIT_ASSIGN_OR_RETURN(bias_, router_check::choice_bias(bias));
  PLAIT_ASSIGN_OR_RETURN(scratch_, RowScratch::take(context_, num_experts_, 4));
  PLAIT_ASSIGN_OR_RETURN(sums_, context_.scratch(num_blocks(num_tokens_) * (num_experts_ + 1) * size_of(DType::f32)));
  auto k = static_cast<size_t>(config_.top_k);
  for (int i = 0; i < context_.threads(); ++i) {
    workers_.push_back({ExpertChooser(config_), std::vector<int64_t>(static_cast<size_t>(num_experts_)), std::vector<float>(k),
                        std::vector<int32_t>(k), scratch_.row(i, 0), scratch_.row(i, 1), scratch_.row(i, 2), as_bytes(scratch_.row(i, 3))});
  }
  fault_.assign(workers_.size(), no_token);
  return {};
}

void RouteForward::run() {
  context_.pool().parallel_for(num_blocks(num_tokens_), [this](int64_t block, int worker) { route_block(block, worker); });
}

void RouteForward::route_block(int64_t block, int worker) {
  Worker& w = workers_[static_cast<size_t>(worker)];
  float* sums = block_sums(block);
  std::fill(sums, sums + num_experts_ + 1, 0.0F);
  BlockStats stats;
  int64_t begin = block * block_tokens;
  int64_t end = std::min(begin + block_tokens, num_tokens_);
  for (int64_t t = begin; t < end; ++t) {
    if (!route_token(t, w, sums, &stats.max[t - begin], &stats.sum[t - begin])) {
      int64_t& fault = fault_[static_cast<size_t>(worker)];
      fault = std::min(fault, t);
      return;
    }
  }
  ew_.log(stats.sum, stats.sum, end - begin);
  for (int64_t i = 0; i < end - begin; ++i) {
    float logsumexp = stats.max[i] + stats.sum[i];
    sums[num_experts_] += logsumexp * logsumexp;
  }
}

bool RouteForward::route_token(int64_t t, Worker& w, float* sums, float* max, float* sum) {
  int64_t n = num_experts_;
  ew_.load(logits_.dtype, dense_row(logits_, t, w.staging), w.logits, n);
  if (!router_check::below_infinity(w.logits, n)) return false;

  bool direct = scores_.defined() && (scores_.strides[1] == 1 || n == 1);
  float* scores = direct ? reinterpret_cast<float*>(scores_.at(t)) : w.scores;
  SoftmaxRow row = softmax_exps(ew_, w.logits, scores, n);
  if (std::isinf(row.max)) return false;  // nothing but -inf
  *max = row.max;
  *sum = row.sum;
  if (config_.score == ScoreFunction::sigmoid) {
    sigmoid(ew_, w.logits, scores, n);
  } else {
    for (int64_t j = 0; j < n; ++j) scores[j] /= row.sum;
  }
  if (scores_.defined() && !direct) scatter_row(as_bytes(scores), scores_, t);

  const float* choice = config_.score == ScoreFunction::topk_softmax ? w.logits : scores;
  if (!bias_.empty()) {
    for (int64_t j = 0; j < n; ++j) w.choice[j] = choice[j] + bias_[static_cast<size_t>(j)];
    choice = w.choice;
  }
  w.chooser.choose(choice, w.ids.data());
  if (!weigh(scores, w)) return false;
  for (int32_t id : w.ids) ++w.chosen_by[static_cast<size_t>(id)];
  scatter_row(as_bytes(w.ids.data()), ids_, t);
  scatter_row(as_bytes(w.chosen.data()), weights_, t);
  score_sums(scores, w, sums);
  return true;
}

/// Adds a token's scores (sigmoid: divided by their sum) to its block's.
void RouteForward::score_sums(const float* scores, Worker& w, float* block_sums) const {
  if (config_.score == ScoreFunction::sigmoid) {
    float divisor = ew_.sum(scores, num_experts_) + sigmoid_epsilon;
    for (int64_t j = 0; j < num_experts_; ++j) w.choice[j] = scores[j] / divisor;
    scores = w.choice;
  }
  for (int64_t j = 0; j < num_experts_; ++j) block_sums[j] += scores[j];
}

/// w.chosen = the weights of w.ids. False where a softmax over chosen logits has nothing but -inf.
bool RouteForward::weigh(const float* scores, Worker& w) const {
  int64_t k = config_.top_k;
  float* chosen = w.chosen.data();
  if (config_.score == ScoreFunction::topk_softmax) {
    if (!chosen_softmax(ew_, w.logits, w.ids.data(), chosen, k)) return false;
  } else {
    for (int64_t s = 0; s < k; ++s) chosen[s] = scores[w.ids[static_cast<size_t>(s)]];
    if (config_.norm_topk) {
      float divisor = norm_divisor(config_, ew_.sum(chosen, k));
      for (int64_t s = 0; s < k; ++s) chosen[s] /= divisor;
    }
  }
  for (int64_t s = 0; s < k; ++s) chosen[s] *= config_.scaling;
  return true;
}

RouterLosses RouteForward::losses() const {
  FloatMode mode;
  std::vector<float> sums(static_cast<size_t>(num_experts_ + 1), 0.0F);
  for (int64_t block = 0; block < num_blocks(num_tokens_); ++block) {
    const float* part = block_sums(block);
    for (size_t j = 0; j < sums.size(); ++j) sums[j] += part[j];
  }
  auto tokens = static_cast<float>(num_tokens_);
  std::vector<int64_t> chosen_by(static_cast<size_t>(num_experts_));
  for (const Worker& w : workers_) {
    for (size_t j = 0; j < chosen_by.size(); ++j) chosen_by[j] += w.chosen_by[j];
  }
  std::vector<float> products(static_cast<size_t>(num_experts_));
  load_gradient(config_, chosen_by, num_tokens_, products.data());
  for (size_t j = 0; j < products.size(); ++j) products[j] *= sums[j] / tokens;
  return {ew_.sum(products.data(), num_experts_), sums[static_cast<size_t>(num_experts_)] / tokens};
}

std::string RouteForward::describe_fault(int64_t token) const {
  std::vector<std::byte> staging(static_cast<size_t>(num_experts_ * size_of(DType::f32)));
  std::vector<float> row(static_cast<size_t>(num_experts_));
  ew_.load(logits_.dtype, dense_row(logits_, token, staging.data()), row.data(), num_experts_);
  return router_check::describe_fault(row);
}

}  // namespace

Result<RouterLosses> route(const Context& context, const RouterConfig& config, const ConstTensorView& logits, const ConstTensorView& bias,
                           const TensorView& ids, const TensorView& weights, const TensorView& scores, int rank) {
  PLAIT_RETURN_IF_ERROR(config.validate());
  PLAIT_RETURN_IF_ERROR(router_check::forward_shapes(config, logits, bias, ids, weights, scores));
  if (logits.shape[0] == 0) return RouterLosses{};
  RouteForward forward(context, config, logits, ids, weights, scores);
  PLAIT_RETURN_IF_ERROR(forward.prepare(bias));
  forward.run();
  if (int64_t token = forward.fault(); token != no_token) {
    std::string place = rank < 0 ? fmt::format("token {}", token) : fmt::format("token {} on rank {}", token, rank);
    return Status::invalid_argument(fmt::format("router: {}: {}", place, forward.describe_fault(token))).at_rank(rank).in_stage("route");
  }
  return forward.losses();
}

}  // namespace plait
