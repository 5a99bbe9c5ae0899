#include "train/parameters.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "plait/routing.h"

namespace plait::train {
namespace {

TensorView contiguous(void* data, DType dtype, std::span<const int64_t> shape) {
  switch (shape.size()) {
    case 1:
      return {data, dtype, {shape[0]}};
    case 2:
      return {data, dtype, {shape[0], shape[1]}};
    default:
      return {data, dtype, {shape[0], shape[1], shape[2]}};
  }
}

int64_t num_elements(const ParameterSpec& spec) {
  int64_t n = 1;
  for (int64_t size : spec.shape) n *= size;
  return n;
}

const Parameter* find(std::span<const Parameter> items, Stream id) {
  for (const Parameter& item : items) {
    if (item.spec.id == id) return &item;
  }
  return nullptr;
}

float inverse_root(int64_t n) { return static_cast<float>(1 / std::sqrt(static_cast<double>(n))); }

constexpr float bias_deviation = 0.02F;

}  // namespace

std::string_view gradient_name(Stream parameter) {
  static constexpr std::string_view names[] = {
      "dw_router",      "db_router",    "",       "dw_gate_up", "db_gate_up", "dw_down", "db_down", "dw_shared_gate_up", "dw_shared_down",
      "dw_shared_gate", "dw_embedding", "dw_head"};
  auto i = static_cast<size_t>(parameter);
  return i < std::size(names) ? names[i] : "";
}

Result<ParameterSet> ParameterSet::create(const Context& context, std::span<const ParameterSpec> specs, uint64_t seed) {
  ParameterSet set;
  int64_t num_gradients[2] = {0, 0};  // replicated, sharded
  for (const ParameterSpec& spec : specs) num_gradients[spec.sharded ? 1 : 0] += spec.trained ? num_elements(spec) : 0;
  PLAIT_ASSIGN_OR_RETURN(set.replicated_, context.zeros(DType::f32, {num_gradients[0]}));
  PLAIT_ASSIGN_OR_RETURN(set.sharded_, context.zeros(DType::f32, {num_gradients[1]}));
  float* next[2] = {set.replicated_.as<float>(), set.sharded_.as<float>()};
  for (const ParameterSpec& spec : specs) {
    Parameter item{spec, {}, {}};
    int64_t n = num_elements(spec);
    PLAIT_ASSIGN_OR_RETURN(item.value, context.empty(spec.dtype, {n}));
    item.value.view = contiguous(item.value.view.data, spec.dtype, spec.shape);
    fill_normal(context, seed, spec.id, spec.first_index, spec.scale, item.value);
    if (spec.trained) {
      item.gradient = contiguous(next[spec.sharded ? 1 : 0], DType::f32, spec.shape);
      next[spec.sharded ? 1 : 0] += n;
    }
    set.items_.push_back(std::move(item));
  }
  return set;
}

TensorView ParameterSet::value(Stream id) const {
  const Parameter* item = find(items_, id);
  return item ? item->value.view : TensorView();
}

TensorView ParameterSet::gradient(Stream id) const {
  const Parameter* item = find(items_, id);
  return item ? item->gradient : TensorView();
}

std::span<float> ParameterSet::replicated_gradients() const {
  return {replicated_.as<float>(), static_cast<size_t>(replicated_.view.num_elements())};
}

void ParameterSet::zero_gradients() const {
  for (const Tensor& gradients : {replicated_, sharded_}) {
    if (gradients.view.num_elements() > 0) std::memset(gradients.view.data, 0, static_cast<size_t>(gradients.view.num_bytes()));
  }
}

std::vector<ParameterSpec> layer_parameter_specs(const LayerConfig& config, int rank, int num_ranks) {
  int64_t h = config.hidden, i = config.intermediate, is = config.shared_intermediate, num_experts = config.router.num_experts;
  int64_t columns = config.activation.hidden_columns(i);
  ExpertPlacement placement{num_experts, num_ranks};
  int64_t e = placement.experts_per_rank();
  std::vector<ParameterSpec> specs;
  auto replicated = [&](Stream id, DType dtype, std::vector<int64_t> shape, float scale, bool trained = true) {
    specs.push_back({id, dtype, std::move(shape), scale, false, 0, trained});
  };
  auto expert = [&](Stream id, std::vector<int64_t> shape, float scale) {
    shape.insert(shape.begin(), e);
    ParameterSpec spec{id, config.dtype, std::move(shape), scale, true, 0, true};
    spec.first_index = static_cast<uint64_t>(placement.global(rank, 0) * (num_elements(spec) / e));
    specs.push_back(std::move(spec));
  };
  replicated(Stream::router, config.dtype, {num_experts, h}, inverse_root(h));
  if (config.router.score == ScoreFunction::topk_softmax && config.expert_bias) {
    replicated(Stream::router_bias, DType::f32, {num_experts}, bias_deviation);
  }
  if (config.router.score == ScoreFunction::sigmoid) replicated(Stream::choice_bias, DType::f32, {num_experts}, bias_deviation, false);
  expert(Stream::gate_up, {h, columns}, inverse_root(h));
  if (config.expert_bias) expert(Stream::gate_up_bias, {columns}, bias_deviation);
  expert(Stream::down, {i, h}, inverse_root(i));
  if (config.expert_bias) expert(Stream::down_bias, {h}, bias_deviation);
  if (is > 0) {
    replicated(Stream::shared_gate_up, config.dtype, {h, config.activation.hidden_columns(is)}, inverse_root(h));
    replicated(Stream::shared_down, config.dtype, {is, h}, inverse_root(is));
    if (config.shared_gate) replicated(Stream::shared_gate, config.dtype, {h}, inverse_root(h));
  }
  return specs;
}

LayerWeights layer_weights(const ParameterSet& set) {
  LayerWeights weights;
  weights.router = set.value(Stream::router);
  weights.router_bias = set.value(Stream::router_bias);
  weights.choice_bias = set.value(Stream::choice_bias);
  weights.gate_up = set.value(Stream::gate_up);
  weights.gate_up_bias = set.value(Stream::gate_up_bias);
  weights.down = set.value(Stream::down);
  weights.down_bias = set.value(Stream::down_bias);
  weights.shared_gate_up = set.value(Stream::shared_gate_up);
  weights.shared_down = set.value(Stream::shared_down);
  weights.shared_gate = set.value(Stream::shared_gate);
  return weights;
}

LayerGradients layer_gradients(const ParameterSet& set, bool accumulate) {
  LayerGradients gradients;
  gradients.router = set.gradient(Stream::router);
  gradients.router_bias = set.gradient(Stream::router_bias);
  gradients.gate_up = set.gradient(Stream::gate_up);
  gradients.gate_up_bias = set.gradient(Stream::gate_up_bias);
  gradients.down = set.gradient(Stream::down);
  gradients.down_bias = set.gradient(Stream::down_bias);
  gradients.shared_gate_up = set.gradient(Stream::shared_gate_up);
  gradients.shared_down = set.gradient(Stream::shared_down);
  gradients.shared_gate = set.gradient(Stream::shared_gate);
  gradients.accumulate = accumulate;
  return gradients;
}

Result<LayerParameters> LayerParameters::create(const Context& context, const LayerConfig& config, int rank, int num_ranks, uint64_t seed) {
  LayerParameters layer;
  PLAIT_ASSIGN_OR_RETURN(layer.set_, ParameterSet::create(context, layer_parameter_specs(config, rank, num_ranks), seed));
  return layer;
}

ParameterSpec embedding_spec(const LayerConfig& config) {
  return {Stream::embedding, config.dtype, {num_bytes_vocabulary, config.hidden}, 1.0F, false, 0, true};
}

}  // namespace plait::train
