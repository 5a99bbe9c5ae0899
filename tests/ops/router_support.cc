#include "ops/router_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace plait::test {

std::unique_ptr<Context> router_context(int threads, const std::string& kernel) {
  Result<std::unique_ptr<Context>> context = Context::create({.threads = threads, .kernel = kernel});
  EXPECT_TRUE(context.ok()) << context.status().to_string();
  return context.take();
}

Status route_status(const Context& context, const RouterConfig& config, const Tensor& logits, const Tensor& bias, int rank) {
  int64_t num_tokens = logits.view.shape[0];
  Tensor ids = make_tensor(DType::i32, {num_tokens, config.top_k});
  Tensor weights = make_tensor(DType::f32, {num_tokens, config.top_k});
  Tensor scores = make_tensor(DType::f32, {num_tokens, config.num_experts});
  return route(context, config, logits, bias, ids, weights, scores, rank).status();
}

Routed run_route(const Context& context, const RouterConfig& config, const Tensor& logits, const Tensor& bias) {
  int64_t num_tokens = logits.view.shape[0];
  Routed r{.logits = logits,
           .bias = bias,
           .ids = make_tensor(DType::i32, {num_tokens, config.top_k}),
           .weights = make_tensor(DType::f32, {num_tokens, config.top_k}),
           .scores = make_tensor(DType::f32, {num_tokens, config.num_experts}),
           .losses = {}};
  Result<RouterLosses> losses = route(context, config, logits, bias, r.ids, r.weights, r.scores);
  EXPECT_TRUE(losses.ok()) << losses.status().to_string();
  if (losses.ok()) r.losses = *losses;
  return r;
}

std::vector<int> ids_of(const Routed& routed) {
  std::vector<int> ids;
  for (double id : to_vector(routed.ids)) ids.push_back(static_cast<int>(id));
  return ids;
}

namespace {

std::vector<double> softmax(const std::vector<double>& logits, double* logsumexp = nullptr) {
  double max = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p;
  double sum = 0;
  for (double l : logits) sum += p.emplace_back(std::exp(l - max));
  for (double& v : p) v /= sum;
  if (logsumexp) *logsumexp = max + std::log(sum);
  return p;
}

}  // namespace

OracleToken oracle_token(const RouterConfig& config, const std::vector<double>& logits, const std::vector<int>& ids) {
  OracleToken token;
  token.scores = softmax(logits, &token.logsumexp);
  token.mean_scores = token.scores;
  if (config.score == ScoreFunction::sigmoid) {
    for (size_t j = 0; j < logits.size(); ++j) token.scores[j] = 1 / (1 + std::exp(-logits[j]));
    double sum = std::accumulate(token.scores.begin(), token.scores.end(), 1e-20);
    for (size_t j = 0; j < logits.size(); ++j) token.mean_scores[j] = token.scores[j] / sum;
  }
  std::vector<double> chosen_logits;
  for (int id : ids) {
    token.weights.push_back(token.scores[static_cast<size_t>(id)]);
    chosen_logits.push_back(logits[static_cast<size_t>(id)]);
  }
  if (config.score == ScoreFunction::topk_softmax) {
    token.weights = softmax(chosen_logits);
  } else if (config.norm_topk) {
    double sum = std::accumulate(token.weights.begin(), token.weights.end(), 0.0);
    double divisor = config.score == ScoreFunction::sigmoid ? sum + 1e-20 : std::max(sum, std::ldexp(1.0, -126));
    for (double& w : token.weights) w /= divisor;
  }
  for (double& w : token.weights) w *= config.scaling;
  return token;
}

OracleTotal oracle_total(const RouterConfig& config, const std::vector<double>& logits, const std::vector<int>& ids,
                         const std::vector<double>& dweights) {
  auto num_experts = static_cast<size_t>(config.num_experts);
  auto k = static_cast<size_t>(config.top_k);
  size_t num_tokens = logits.size() / num_experts;
  std::vector<double> share(num_experts), mean(num_experts);
  OracleTotal sum;
  for (size_t t = 0; t < num_tokens; ++t) {
    std::vector<double> row(logits.begin() + static_cast<int64_t>(t * num_experts), logits.begin() + static_cast<int64_t>((t + 1) * num_experts));
    std::vector<int> chosen(ids.begin() + static_cast<int64_t>(t * k), ids.begin() + static_cast<int64_t>((t + 1) * k));
    OracleToken token = oracle_token(config, row, chosen);
    for (int id : chosen) share[static_cast<size_t>(id)] += 1.0 / static_cast<double>(num_tokens * k);
    for (size_t j = 0; j < num_experts; ++j) mean[j] += token.mean_scores[j] / static_cast<double>(num_tokens);
    sum.z += token.logsumexp * token.logsumexp / static_cast<double>(num_tokens);
    for (size_t s = 0; s < k; ++s) sum.total += dweights[t * k + s] * token.weights[s];
  }
  double scale = static_cast<double>(config.num_experts) * (config.aux_loss_times_k ? static_cast<double>(config.top_k) : 1.0);
  for (size_t j = 0; j < num_experts; ++j) sum.load_balancing += scale * share[j] * mean[j];
  sum.total += static_cast<double>(config.aux_loss) * sum.load_balancing + static_cast<double>(config.z_loss) * sum.z;
  return sum;
}

std::vector<int> oracle_choice(const RouterConfig& config, const std::vector<float>& values) {
  auto group_size = static_cast<size_t>(config.num_experts / config.n_group);
  std::vector<int> groups(static_cast<size_t>(config.n_group));
  std::iota(groups.begin(), groups.end(), 0);
  auto group_value = [&](int g) {
    std::vector<float> members(values.begin() + g * static_cast<int64_t>(group_size), values.begin() + (g + 1) * static_cast<int64_t>(group_size));
    std::sort(members.begin(), members.end(), std::greater<>());
    return config.score == ScoreFunction::sigmoid && group_size > 1 ? members[0] + members[1] : members[0];
  };
  std::stable_sort(groups.begin(), groups.end(), [&](int a, int b) { return group_value(a) > group_value(b); });
  groups.resize(static_cast<size_t>(config.topk_group));
  std::sort(groups.begin(), groups.end());
  std::vector<int> experts;
  for (int g : groups) {
    for (size_t i = 0; i < group_size; ++i) experts.push_back(g * static_cast<int>(group_size) + static_cast<int>(i));
  }
  std::stable_sort(experts.begin(), experts.end(), [&](int a, int b) { return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)]; });
  experts.resize(static_cast<size_t>(config.top_k));
  return experts;
}

}  // namespace plait::test
