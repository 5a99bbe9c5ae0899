#include "support/layer_case.h"

#include <initializer_list>
#include <numeric>
#include <utility>

#include "base/status_macros.h"

namespace plait::test {
namespace {

Tensor values(DType dtype, std::initializer_list<int64_t> shape, uint64_t seed, float scale, bool integers) {
  return integers ? integer_tensor(dtype, shape, seed, -2, 2) : random_tensor(dtype, shape, seed, -scale, scale);
}

ConstTensorView slice_of(const Tensor& t, int64_t begin, int64_t end) { return t.defined() ? t.view.slice(begin, end) : TensorView(); }

int64_t first_token(const TokenSplit& split, int rank) { return std::accumulate(split.begin(), split.begin() + rank, int64_t{0}); }

/// A new tensor of a parameter's shape.
Tensor gradient_like(const ConstTensorView& parameter, const RankRunOptions& options) {
  if (!parameter.defined()) return {};
  const auto& s = parameter.shape;
  const DType type = options.accumulate ? DType::f32 : options.gradient_type;
  Tensor t = parameter.num_dims == 1   ? make_tensor(type, {s[0]})
             : parameter.num_dims == 2 ? make_tensor(type, {s[0], s[1]})
                                       : make_tensor(type, {s[0], s[1], s[2]});
  for (int64_t i = 0; options.accumulate && i < t.view.num_elements(); ++i) set(t, i, options.initial_gradient);
  return t;
}

/// The tensors of all ranks, one after the other.
Tensor concatenated(const std::vector<RankResult>& ranks, Tensor RankResult::*member) {
  const TensorView& first = (ranks.front().*member).view;
  if (!first.defined()) return {};
  int64_t length = 0;
  for (const RankResult& rank : ranks) length += (rank.*member).view.shape[0];
  Tensor all =
      first.num_dims == 2 ? make_tensor(first.dtype, {length, first.shape[1]}) : make_tensor(first.dtype, {length, first.shape[1], first.shape[2]});
  int64_t to = 0;
  for (const RankResult& rank : ranks) {
    const Tensor& part = rank.*member;
    for (int64_t i = 0; i < part.view.num_elements(); ++i) set(all, to++, get(part, i));
  }
  return all;
}

void compare(const char* what, const Tensor& got, const Tensor& expected, std::string& text) {
  if (!text.empty() || !got.defined() || !expected.defined()) return;
  const std::string d = bit_difference(got, expected);
  if (!d.empty()) text = std::string(what) + ", " + d;
}

Result<std::vector<RankResult>> run_dispatcher(const LayerInputs& in, const TokenSplit& split, const ContextOptions& context,
                                               const RankRunOptions& options) {
  std::vector<RankResult> results(split.size());
  const std::vector<Status> statuses = run_with_contexts(static_cast<int>(split.size()), context, [&](const Context& c, Group& group) {
    return run_rank(c, group, in, split, results[static_cast<size_t>(group.rank())], options);
  });
  for (const Status& status : statuses) PLAIT_RETURN_IF_ERROR(status);
  return results;
}

}  // namespace

LayerConfig small_config(DType dtype) {
  LayerConfig config;
  config.hidden = 19;
  config.intermediate = 13;
  config.dtype = dtype;
  config.router.num_experts = 8;
  config.router.top_k = 3;
  config.router.norm_topk = true;
  return config;
}

LayerInputs make_inputs(const LayerConfig& config, const InputOptions& options) {
  const int64_t num_experts = config.router.num_experts, hidden = config.hidden, k = config.router.top_k;
  const int64_t columns = config.activation.hidden_columns(config.intermediate), shared = config.shared_intermediate;
  const DType dtype = config.dtype;
  uint64_t seed = options.seed * 100;
  auto make = [&](std::initializer_list<int64_t> shape, float scale) { return values(dtype, shape, ++seed, scale, options.integers); };
  LayerInputs in;
  in.config = config;
  in.x = make({options.tokens, hidden}, 1);
  in.dy = make({options.tokens, hidden}, 1);
  in.gate_up = make({num_experts, hidden, columns}, 0.5F);
  in.down = make({num_experts, config.intermediate, hidden}, 0.5F);
  if (config.expert_bias) {
    in.gate_up_bias = make({num_experts, columns}, 0.5F);
    in.down_bias = make({num_experts, hidden}, 0.5F);
  }
  if (shared > 0) {
    in.shared_gate_up = make({hidden, config.activation.hidden_columns(shared)}, 0.5F);
    in.shared_down = make({shared, hidden}, 0.5F);
    if (config.shared_gate) in.shared_gate = make({hidden}, 0.5F);
  }
  if (options.given_routing) {
    in.ids = integer_tensor(DType::i32, {options.tokens, k}, ++seed, 0, static_cast<int>(num_experts) - 1);
    in.weights = values(DType::f32, {options.tokens, k}, ++seed, 1, options.integers);
    return in;
  }
  in.router = make({num_experts, hidden}, 1);
  if (options.router_bias) in.router_bias = values(DType::f32, {num_experts}, ++seed, 0.5F, options.integers);
  if (options.choice_bias) in.choice_bias = values(DType::f32, {num_experts}, ++seed, 0.5F, options.integers);
  return in;
}

std::string difference(const RankResult& got, const RankResult& expected) {
  std::string text;
  compare("y", got.y, expected.y, text);
  compare("dweights", got.dweights, expected.dweights, text);
  compare("dx", got.dx, expected.dx, text);
  compare("dW down", got.down, expected.down, text);
  compare("db down", got.down_bias, expected.down_bias, text);
  compare("dW gate_up", got.gate_up, expected.gate_up, text);
  compare("db gate_up", got.gate_up_bias, expected.gate_up_bias, text);
  compare("dW router", got.router, expected.router, text);
  compare("db router", got.router_bias, expected.router_bias, text);
  compare("dW shared gate_up", got.shared_gate_up, expected.shared_gate_up, text);
  compare("dW shared down", got.shared_down, expected.shared_down, text);
  compare("dW shared gate", got.shared_gate, expected.shared_gate, text);
  if (text.empty() && got.losses.load_balancing != expected.losses.load_balancing) text = "load-balancing loss";
  if (text.empty() && got.losses.z != expected.losses.z) text = "z-loss";
  return text;
}

RankResult joined(const std::vector<RankResult>& ranks) {
  RankResult all;
  for (Tensor RankResult::*member : {&RankResult::y, &RankResult::dx, &RankResult::dweights, &RankResult::gate_up, &RankResult::gate_up_bias,
                                     &RankResult::down, &RankResult::down_bias}) {
    all.*member = concatenated(ranks, member);
  }
  return all;
}

LayerWeights rank_weights(const LayerInputs& in, int rank, int num_ranks) {
  const int64_t per_rank = in.config.router.num_experts / num_ranks, begin = rank * per_rank, end = begin + per_rank;
  return {.router = in.router,
          .router_bias = in.router_bias,
          .choice_bias = in.choice_bias,
          .gate_up = slice_of(in.gate_up, begin, end),
          .gate_up_bias = slice_of(in.gate_up_bias, begin, end),
          .down = slice_of(in.down, begin, end),
          .down_bias = slice_of(in.down_bias, begin, end),
          .shared_gate_up = in.shared_gate_up,
          .shared_down = in.shared_down,
          .shared_gate = in.shared_gate};
}

TensorView rank_rows(const Tensor& global, const TokenSplit& split, int rank) {
  if (!global.defined()) return {};
  const int64_t begin = first_token(split, rank);
  return global.view.slice(begin, begin + split[static_cast<size_t>(rank)]);
}

GivenRouting rank_routing(const LayerInputs& in, const TokenSplit& split, int rank) {
  return {rank_rows(in.ids, split, rank), rank_rows(in.weights, split, rank)};
}

RankResult make_rank_result(const LayerInputs& in, const TokenSplit& split, int rank, const RankRunOptions& options) {
  const LayerWeights w = rank_weights(in, rank, static_cast<int>(split.size()));
  const int64_t tokens = split[static_cast<size_t>(rank)];
  RankResult r;
  r.y = make_tensor(in.config.dtype, {tokens, in.config.hidden});
  r.dx = make_tensor(in.config.dtype, {tokens, in.config.hidden});
  r.dweights = make_tensor(DType::f32, {tokens, in.config.router.top_k});
  r.gate_up = gradient_like(w.gate_up, options);
  r.gate_up_bias = gradient_like(w.gate_up_bias, options);
  r.down = gradient_like(w.down, options);
  r.down_bias = gradient_like(w.down_bias, options);
  if (!in.ids.defined()) {
    r.router = gradient_like(w.router, options);
    r.router_bias = gradient_like(w.router_bias, options);
  }
  r.shared_gate_up = gradient_like(w.shared_gate_up, options);
  r.shared_down = gradient_like(w.shared_down, options);
  r.shared_gate = gradient_like(w.shared_gate, options);
  return r;
}

LayerGradients gradients_of(const RankResult& r, const RankRunOptions& options) {
  return {r.router,    r.router_bias,    r.gate_up,     r.gate_up_bias, r.down,
          r.down_bias, r.shared_gate_up, r.shared_down, r.shared_gate,  options.accumulate};
}

Status run_rank(const Context& context, Group& group, const LayerInputs& in, const TokenSplit& split, RankResult& result,
                const RankRunOptions& options) {
  const int rank = group.rank();
  result = make_rank_result(in, split, rank, options);
  const LayerWeights weights = rank_weights(in, rank, group.size());
  const ConstTensorView x = rank_rows(in.x, split, rank);
  PLAIT_ASSIGN_OR_RETURN(const LayerState state, layer_forward(context, group, in.config, weights, x, result.y, rank_routing(in, split, rank)));
  result.losses = state.losses;
  result.ids = state.ids;
  result.weights = state.weights;
  return layer_backward(context, group, in.config, weights, x, state, rank_rows(in.dy, split, rank), result.dx, gradients_of(result, options),
                        result.dweights, options.loss_scale);
}

std::vector<Status> run_with_contexts(int num_ranks, const ContextOptions& options, const std::function<Status(const Context&, Group&)>& body) {
  return run_ranks(num_ranks, {}, [&](Group& group) -> Status {
    PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, Context::create(options));
    return body(*context, group);
  });
}

Result<std::vector<RankResult>> run_layer(const LayerInputs& in, const TokenSplit& split, const ContextOptions& context,
                                          const RankRunOptions& options) {
  Result<std::vector<RankResult>> results = run_dispatcher(in, split, context, options);
  if (!results.ok() || in.config.dispatcher != Dispatcher::alltoall) return results;
  for (const Dispatcher dispatcher : all_dispatchers()) {
    if (dispatcher == Dispatcher::alltoall || dispatcher == Dispatcher::eager) continue;
    LayerInputs other = in;
    other.config.dispatcher = dispatcher;
    PLAIT_ASSIGN_OR_RETURN(const std::vector<RankResult> got, run_dispatcher(other, split, context, options));
    for (size_t rank = 0; rank < split.size(); ++rank) {
      const std::string text = difference(got[rank], results.value()[rank]);
      if (!text.empty())
        return Status::internal(std::string(name(dispatcher)) + " differs from alltoall on rank " + std::to_string(rank) + ": " + text);
    }
  }
  return results;
}

std::string difference_across_splits(const LayerInputs& in, const std::vector<TokenSplit>& splits, const ContextOptions& context) {
  RankResult expected;
  for (size_t i = 0; i < splits.size(); ++i) {
    const Result<std::vector<RankResult>> run = run_layer(in, splits[i], context);
    if (!run.ok()) return run.status().to_string();
    if (i == 0) expected = joined(run.value());
    const std::string text = difference(joined(run.value()), expected);
    if (!text.empty()) return std::to_string(splits[i].size()) + " ranks: " + text;
  }
  return "";
}

}  // namespace plait::test
