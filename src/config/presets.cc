// Shapes and conventions of public models, from the config.json files that their makers publish.
#include <fmt/format.h>

#include <cmath>

#include "config/nearest.h"
#include "config/presets.h"

namespace plait {
namespace {

RouterConfig softmax_router(int64_t num_experts, int64_t top_k) {
  RouterConfig router;
  router.num_experts = num_experts;
  router.top_k = top_k;
  router.norm_topk = true;
  return router;
}

LayerConfig plain_layer(int64_t hidden, int64_t intermediate, int64_t num_experts, int64_t top_k) {
  LayerConfig layer;
  layer.hidden = hidden;
  layer.intermediate = intermediate;
  layer.router = softmax_router(num_experts, top_k);
  return layer;
}

LayerConfig with_gated_shared_expert(LayerConfig layer, int64_t shared_intermediate) {
  layer.shared_intermediate = shared_intermediate;
  layer.shared_gate = true;
  return layer;
}

LayerConfig deepseek_v3_layer() {
  LayerConfig layer = plain_layer(7168, 2048, 256, 8);
  layer.router.score = ScoreFunction::sigmoid;
  layer.router.n_group = 8;
  layer.router.topk_group = 4;
  layer.router.scaling = 2.5F;
  layer.router_f32 = true;
  layer.shared_intermediate = 2048;
  return layer;
}

LayerConfig gpt_oss_layer() {
  LayerConfig layer = plain_layer(2880, 2880, 128, 4);
  layer.router.score = ScoreFunction::topk_softmax;
  layer.router.norm_topk = false;  // the softmax over the chosen logits sums to 1 already
  layer.activation.kind = ActivationKind::swiglu_clamped;
  layer.activation.interleaved = true;
  layer.expert_bias = true;
  return layer;
}

int64_t scaled(int64_t size, double scale) { return size == 0 ? 0 : std::max<int64_t>(1, std::llround(static_cast<double>(size) * scale)); }

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      {"qwen3_5_moe_397b", "qwen3_5_moe", with_gated_shared_expert(plain_layer(4096, 1024, 512, 10), 1024)},
      {"qwen3_30b_a3b", "qwen3_moe", plain_layer(2048, 768, 128, 8)},
      {"mixtral_8x7b", "mixtral", plain_layer(4096, 14336, 8, 2)},
      {"deepseek_v3", "deepseek_v3", deepseek_v3_layer()},
      {"gpt_oss_120b", "gpt_oss", gpt_oss_layer()},
      {"tiny", "tiny", with_gated_shared_expert(plain_layer(64, 32, 8, 2), 32)},
  };
  return all;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.push_back(preset.name);
  return names;
}

Status apply_preset(std::string_view name, double scale, Case& to) {
  if (!(scale > 0 && scale <= 1)) {
    return Status::invalid_argument(fmt::format("scale: {} is not allowed. Allowed: a number above 0 and at most 1, as in 1/8.", scale));
  }
  for (const Preset& preset : presets()) {
    if (preset.name != name) continue;
    LayerConfig layer = preset.layer;
    layer.hidden = scaled(layer.hidden, scale);
    layer.intermediate = scaled(layer.intermediate, scale);
    layer.shared_intermediate = scaled(layer.shared_intermediate, scale);
    layer.dtype = to.layer.dtype;
    layer.dispatcher = to.layer.dispatcher;
    layer.recompute = to.layer.recompute;
    layer.combine = to.layer.combine;
    layer.sentinel = to.layer.sentinel;
    to.layer = layer;
    to.model = name;
    to.scale = scale;
    return {};
  }
  std::vector<std::string> known = preset_names();
  std::string near = nearest_name(name, known);
  std::string hint = near.empty() ? "." : fmt::format("; did you mean \"{}\"?", near);
  return Status::invalid_argument(fmt::format("model: \"{}\" is not a preset{} Allowed: {}.", name, hint, join_choices(known)));
}

}  // namespace plait
