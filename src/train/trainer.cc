#include "train/trainer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_set.h"
#include "plait/grouped_matmul.h"
#include "train/loss.h"
#include "train/reduce.h"

namespace plait::train {
namespace {

ParameterSpec head_spec(const LayerConfig& config) {
  return {Stream::head, config.dtype, {1, config.hidden, num_bytes_vocabulary}, 1.0F / 16, false, 0, true};
}

/// x[t] = table[byte of t].
void embed(const Context& context, const ConstTensorView& table, std::span<const uint8_t> bytes, const TensorView& x) {
  auto row_bytes = static_cast<size_t>(x.shape[1] * size_of(x.dtype));
  context.pool().parallel_for(x.shape[0], [&](int64_t t, int) { std::memcpy(x.at(t), table.at(bytes[static_cast<size_t>(t)]), row_bytes); });
}

/// out[t] = round(a[t] + b[t]), a float32 sum; out may be a.
void add_rows(const Context& context, const ConstTensorView& a, const ConstTensorView& b, const TensorView& out) {
  const kernels::ElementwiseKernels& elementwise = *context.kernels().elementwise;
  int64_t n = out.shape[1];
  std::vector<float> rows(static_cast<size_t>(context.threads() * n));
  context.pool().parallel_for(out.shape[0], [&](int64_t t, int worker) {
    float* sum = rows.data() + worker * n;
    elementwise.load(a.dtype, a.at(t), sum, n);
    elementwise.add(b.dtype, b.at(t), sum, n);
    elementwise.store(out.dtype, sum, out.at(t), n);
  });
}

/// A rank's part of the loss, as it travels.
struct LossPart {
  double load_balancing, z;
};

}  // namespace

/// What backward needs.
struct Trainer::Activations {
  LayerState state;
  Tensor x, z, dlogits;  // (T,H), (T,H), (T,256)
  std::vector<float> losses;
};

Result<Trainer> Trainer::create(const Context& context, Group& group, const TrainOptions& options) {
  PLAIT_RETURN_IF_ERROR(options.layer.validate(group.size()));
  if (options.tokens < 0) return Status::invalid_argument("tokens = " + std::to_string(options.tokens) + ": must be at least 0");
  if (options.text.size() == 0) return Status::invalid_argument("training needs a text of at least 1 byte");
  Trainer trainer(context, group, options);
  std::vector<ParameterSpec> specs = layer_parameter_specs(options.layer, group.rank(), group.size());
  specs.push_back(embedding_spec(options.layer));
  specs.push_back(head_spec(options.layer));
  PLAIT_ASSIGN_OR_RETURN(trainer.parameters_, ParameterSet::create(context, specs, options.seed));
  PLAIT_ASSIGN_OR_RETURN(trainer.optimizer_, AdamW::create(context, trainer.parameters_, options.optimizer));
  return trainer;
}

float Trainer::gradient_scale() const { return num_global_tokens() > 0 ? 1.0F / static_cast<float>(num_global_tokens()) : 0.0F; }

void Trainer::take_batch() {
  int64_t first = num_steps_ * num_global_tokens() + group_->rank() * options_.tokens;
  inputs_.clear();
  targets_.clear();
  for (int64_t t = 0; t < options_.tokens; ++t) {
    inputs_.push_back(options_.text.byte(first + t));
    targets_.push_back(options_.text.byte(first + t + 1));
  }
}

Result<Trainer::Activations> Trainer::forward() {
  Activations a;
  int64_t tokens = options_.tokens, hidden = options_.layer.hidden;
  DType dtype = options_.layer.dtype;
  PLAIT_ASSIGN_OR_RETURN(a.x, context_->empty(dtype, {tokens, hidden}));
  PLAIT_ASSIGN_OR_RETURN(a.z, context_->empty(dtype, {tokens, hidden}));
  PLAIT_ASSIGN_OR_RETURN(a.dlogits, context_->empty(dtype, {tokens, num_bytes_vocabulary}));
  PLAIT_ASSIGN_OR_RETURN(Tensor logits, context_->empty(DType::f32, {tokens, num_bytes_vocabulary}));
  a.losses.resize(static_cast<size_t>(tokens));

  embed(*context_, parameters_.value(Stream::embedding), inputs_, a.x);
  PLAIT_ASSIGN_OR_RETURN(a.state, layer_forward(*context_, *group_, options_.layer, layer_weights(parameters_), a.x, a.z));
  add_rows(*context_, a.z, a.x, a.z);
  PLAIT_RETURN_IF_ERROR(grouped_matmul(*context_, a.z, parameters_.value(Stream::head), std::span(&tokens, 1), {}, logits));
  cross_entropy(*context_, logits, targets_, a.losses, a.dlogits);
  return a;
}

Status Trainer::backward(const Activations& a) {
  int64_t tokens = options_.tokens;
  parameters_.zero_gradients();
  PLAIT_ASSIGN_OR_RETURN(Tensor dz, context_->empty(options_.layer.dtype, {tokens, options_.layer.hidden}));
  PLAIT_ASSIGN_OR_RETURN(Tensor dx, context_->empty(options_.layer.dtype, {tokens, options_.layer.hidden}));
  GroupedMatmulGradients head{dz, parameters_.gradient(Stream::head), {}, true};
  PLAIT_RETURN_IF_ERROR(grouped_matmul_backward(*context_, a.dlogits, a.z, parameters_.value(Stream::head), std::span(&tokens, 1), head));
  // The router's losses are means over this rank's tokens; the gradient of a sum over tokens counts each of them T times.
  PLAIT_RETURN_IF_ERROR(layer_backward(*context_, *group_, options_.layer, layer_weights(parameters_), a.x, a.state, dz, dx,
                                       layer_gradients(parameters_, true), {}, static_cast<float>(tokens)));
  add_embedding_gradient(dz, dx);
  return all_reduce_in_rank_order(*context_, *group_, parameters_.replicated_gradients(), "gradient reduction");
}

void Trainer::add_embedding_gradient(const ConstTensorView& dz, const ConstTensorView& dx) const {
  std::vector<std::vector<int64_t>> tokens_of(num_bytes_vocabulary);  // ascending: the order of the sums
  for (size_t t = 0; t < inputs_.size(); ++t) tokens_of[inputs_[t]].push_back(static_cast<int64_t>(t));
  const kernels::ElementwiseKernels& elementwise = *context_->kernels().elementwise;
  TensorView gradient = parameters_.gradient(Stream::embedding);
  int64_t n = gradient.shape[1];
  std::vector<float> rows(static_cast<size_t>(context_->threads() * n));
  context_->pool().parallel_for(num_bytes_vocabulary, [&](int64_t byte, int worker) {
    float* row = rows.data() + worker * n;
    auto* sum = reinterpret_cast<float*>(gradient.at(byte));
    for (int64_t t : tokens_of[static_cast<size_t>(byte)]) {
      elementwise.load(dz.dtype, dz.at(t), row, n);  // through the residual
      elementwise.add(dx.dtype, dx.at(t), row, n);   // through the layer
      elementwise.add(DType::f32, reinterpret_cast<const std::byte*>(row), sum, n);
    }
  });
}

Status Trainer::collect_loss(const Activations& a, TrainStep& report) const {
  // All ranks' token losses are summed in global token order, so that the mean is the same for any number of ranks.
  LossPart own{a.state.losses.load_balancing, a.state.losses.z};
  std::vector<std::byte> payload(sizeof own + a.losses.size() * sizeof(float));
  std::memcpy(payload.data(), &own, sizeof own);
  if (!a.losses.empty()) std::memcpy(payload.data() + sizeof own, a.losses.data(), a.losses.size() * sizeof(float));
  PLAIT_ASSIGN_OR_RETURN(Exchange all, group_->exchange("loss", payload));
  const RouterConfig& router = options_.layer.router;
  double sum = 0, auxiliary = 0;
  for (int rank = 0; rank < group_->size(); ++rank) {
    LossPart part;
    std::memcpy(&part, all.payload(rank).data(), sizeof part);
    auxiliary += (static_cast<double>(router.aux_loss) * part.load_balancing + static_cast<double>(router.z_loss) * part.z) / group_->size();
    for (size_t t = 0; t < a.losses.size(); ++t) {
      float loss = 0;
      std::memcpy(&loss, all.payload(rank).data() + sizeof part + t * sizeof loss, sizeof loss);
      sum += static_cast<double>(loss);
    }
  }
  report.cross_entropy = num_global_tokens() > 0 ? sum / static_cast<double>(num_global_tokens()) : 0.0;
  report.loss = report.cross_entropy + auxiliary;
  return {};
}

Result<TrainStep> Trainer::evaluate() {
  take_batch();
  PLAIT_ASSIGN_OR_RETURN(Activations activations, forward());
  PLAIT_RETURN_IF_ERROR(backward(activations));
  TrainStep report;
  PLAIT_RETURN_IF_ERROR(collect_loss(activations, report));
  PLAIT_ASSIGN_OR_RETURN(GradientReport gradients, gradient_report(*context_, *group_, parameters_, gradient_scale()));
  report.grad_norm = gradients.norm;
  report.nonfinite = gradients.nonfinite;
  const CountsMatrix& counts = activations.state.plan.counts();
  report.tokens_per_expert.assign(static_cast<size_t>(counts.placement.num_experts), 0);
  for (int rank = 0; rank < group_->size(); ++rank) {
    for (int64_t g = 0; g < counts.placement.num_experts; ++g) report.tokens_per_expert[static_cast<size_t>(g)] += counts.at(rank, g);
  }
  return report;
}

Result<TrainStep> Trainer::step() {
  PLAIT_ASSIGN_OR_RETURN(TrainStep report, evaluate());
  if (report.nonfinite == 0) optimizer_.step(*context_, parameters_, gradient_scale());
  ++num_steps_;
  return report;
}

}  // namespace plait::train
