#include "observe/verify_reference.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "observe/measure_compare.h"
#include "train/parameters.h"

namespace plait::verify {
namespace {

using train::Stream;

/// The MLP of an expert on one row.
class Mlp {
 public:
  Mlp(const LayerConfig& config, const ExpertWeights& weights)
      : config_(config),
        weights_(weights),
        hidden_(config.hidden),
        columns_(weights.gate_up.view.shape[1]),
        intermediate_(weights.down.view.shape[0]) {}

  void forward(std::span<const double> x) {
    std::vector<Chain> h(static_cast<size_t>(columns_));
    for (int64_t k = 0; k < hidden_; ++k) {
      for (int64_t c = 0; c < columns_; ++c) h[at(c)].add({x[at(k)], 0}, element(weights_.gate_up, k * columns_ + c));
    }
    h_ = finish(h, weights_.gate_up_bias);
    for (int64_t i = 0; i < intermediate_; ++i) {
      ColumnPair pair = columns_of(config_.activation, i, intermediate_);
      act_.push_back(rounded(activation_value(config_.activation, h_[at(pair.gate)], h_[at(pair.up)]), config_.dtype));
    }
    std::vector<Chain> row(static_cast<size_t>(hidden_));
    for (int64_t i = 0; i < intermediate_; ++i) {
      for (int64_t n = 0; n < hidden_; ++n) row[at(n)].add(act_[at(i)], element(weights_.down, i * hidden_ + n));
    }
    row_ = finish(row, weights_.down_bias);
  }

  /// dx of the row for `dy`, and dweight = dot(act, g) (+ dot(bias, dy)). The gradient that enters the activation is weight * g.
  BoundedRow backward(const BoundedRow& dy, double weight, Bounded* dweight) const {
    Chain dot, bias_dot;
    BoundedRow dh(at(columns_));
    for (int64_t i = 0; i < intermediate_; ++i) {
      Chain chain;
      for (int64_t n = 0; n < hidden_; ++n) chain.add(dy[at(n)], element(weights_.down, i * hidden_ + n));
      Bounded g = rounded(chain.result(), config_.dtype);
      dot.add(act_[at(i)], g);
      ColumnPair pair = columns_of(config_.activation, i, intermediate_);
      ActivationGradients d = activation_gradient(config_.activation, h_[at(pair.gate)], h_[at(pair.up)], product(g, {weight, 0}));
      if (pair.up != pair.gate) dh[at(pair.up)] = rounded(d.up, config_.dtype);
      dh[at(pair.gate)] = rounded(d.gate, config_.dtype);
    }
    if (weights_.down_bias.defined()) {
      for (int64_t n = 0; n < hidden_; ++n) bias_dot.add(dy[at(n)], element(weights_.down_bias, n));
    }
    Bounded first = dot.result(), second = bias_dot.result();
    if (dweight) *dweight = rounded({first.value + second.value, first.error + second.error}, DType::f32);
    BoundedRow dx;
    for (int64_t k = 0; k < hidden_; ++k) {
      Chain chain;
      for (int64_t c = 0; c < columns_; ++c) chain.add(dh[at(c)], element(weights_.gate_up, k * columns_ + c));
      dx.push_back(rounded(chain.result(), config_.dtype));
    }
    return dx;
  }

  const BoundedRow& row() const { return row_; }

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }

  BoundedRow finish(std::vector<Chain>& chains, const Tensor& bias) const {
    BoundedRow out;
    for (size_t i = 0; i < chains.size(); ++i) {
      if (bias.defined()) chains[i].add(element(bias, static_cast<int64_t>(i)));
      out.push_back(rounded(chains[i].result(), config_.dtype));
    }
    return out;
  }

  const LayerConfig& config_;
  const ExpertWeights& weights_;
  int64_t hidden_, columns_, intermediate_;
  BoundedRow h_, act_, row_;
};

BoundedRow exact(std::span<const double> values) {
  BoundedRow row;
  for (double v : values) row.push_back({v, 0});
  return row;
}

void add_shared(const LayerConfig& config, const ExpertWeights& shared, const TokenSample& token, const ConstTensorView& gate, BoundedRow& y,
                std::vector<Chain>& sums, std::vector<Chain>& dx) {
  Mlp mlp(config, shared);
  mlp.forward(token.x);
  Bounded scale{1, 0};
  BoundedRow dy = exact(token.dy);
  Chain z, ds;
  for (size_t n = 0; n < y.size(); ++n) ds.add(mlp.row()[n], token.dy[n]);
  if (gate.defined()) {
    for (size_t n = 0; n < y.size(); ++n) z.add({token.x[n], 0}, element(gate, static_cast<int64_t>(n)));
    scale = sigmoid(z.result());
    for (Bounded& v : dy) v = rounded(product(scale, v), config.dtype);
  }
  for (size_t n = 0; n < y.size(); ++n) sums[n].add(product(scale, mlp.row()[n]), 1.0);
  BoundedRow own = mlp.backward(dy, 1.0, nullptr);
  Bounded dz = product(product(ds.result(), scale), {1 - scale.value, scale.error + 0x1p-24});
  for (size_t n = 0; n < own.size(); ++n) {
    Bounded row = own[n];
    if (gate.defined()) {
      Bounded through_gate = product(dz, {element(gate, static_cast<int64_t>(n)), 0});
      row = rounded({row.value + through_gate.value, row.error + through_gate.error + 0x1p-23 * (row.largest() + through_gate.largest())},
                    config.dtype);
    }
    dx[n].add(row, 1.0);
  }
}

}  // namespace

Result<ExpertWeights> draw_expert(const Context& context, const LayerConfig& config, uint64_t seed, int64_t g) {
  bool shared = g < 0;
  int64_t intermediate = shared ? config.shared_intermediate : config.intermediate, columns = config.activation.hidden_columns(intermediate);
  ExpertWeights weights;
  // The specifications of rank g of E ranks are those of expert g alone.
  int64_t num_experts = config.router.num_experts;
  for (const train::ParameterSpec& spec : train::layer_parameter_specs(config, static_cast<int>(shared ? 0 : g), static_cast<int>(num_experts))) {
    auto draw = [&](int64_t rows, int64_t width, Tensor& out) -> Status {
      PLAIT_ASSIGN_OR_RETURN(out, context.empty(spec.dtype, {rows, width}));
      train::fill_normal(context, seed, spec.id, spec.first_index, spec.scale, out);
      return {};
    };
    if (spec.id == (shared ? Stream::shared_gate_up : Stream::gate_up)) PLAIT_RETURN_IF_ERROR(draw(config.hidden, columns, weights.gate_up));
    if (spec.id == (shared ? Stream::shared_down : Stream::down)) PLAIT_RETURN_IF_ERROR(draw(intermediate, config.hidden, weights.down));
    if (!shared && spec.id == Stream::gate_up_bias) PLAIT_RETURN_IF_ERROR(draw(1, columns, weights.gate_up_bias));
    if (!shared && spec.id == Stream::down_bias) PLAIT_RETURN_IF_ERROR(draw(1, config.hidden, weights.down_bias));
  }
  return weights;
}

Result<TokenReference> evaluate_token(const Context& context, const LayerConfig& config, uint64_t seed, const TokenSample& token,
                                      const ConstTensorView& shared_gate) {
  TokenReference reference;
  auto hidden = static_cast<size_t>(config.hidden);
  reference.y.resize(hidden);
  std::vector<Chain> y(hidden), dx(hidden);
  for (size_t slot = 0; slot < token.ids.size(); ++slot) {
    PLAIT_ASSIGN_OR_RETURN(ExpertWeights weights, draw_expert(context, config, seed, token.ids[slot]));
    Mlp mlp(config, weights);
    mlp.forward(token.x);
    BoundedRow row = mlp.backward(exact(token.dy), token.weights[slot], &reference.dweights.emplace_back());
    for (size_t n = 0; n < hidden; ++n) {
      y[n].add(product(mlp.row()[n], {token.weights[slot], 0}), 1.0);
      dx[n].add(row[n], 1.0);
    }
  }
  if (config.shared_intermediate > 0) {
    PLAIT_ASSIGN_OR_RETURN(ExpertWeights shared, draw_expert(context, config, seed, -1));
    add_shared(config, shared, token, shared_gate, reference.y, y, dx);
  }
  for (size_t n = 0; n < hidden; ++n) {
    reference.y[n] = rounded(y[n].result(), config.dtype);
    reference.dx.push_back(rounded(dx[n].result(), config.dtype));
  }
  return reference;
}

ColumnReference::ColumnReference(const LayerConfig& config, const ExpertWeights& weights, int64_t i, std::vector<int64_t> hidden_rows)
    : config_(config), i_(i), columns_(columns_of(config.activation, i, config.intermediate)), hidden_rows_(std::move(hidden_rows)) {
  int64_t width = weights.gate_up.view.shape[1];
  for (int64_t k = 0; k < config.hidden; ++k) {
    gate_weights_.push_back(element(weights.gate_up, k * width + columns_.gate));
    up_weights_.push_back(element(weights.gate_up, k * width + columns_.up));
    down_weights_.push_back(element(weights.down, i * config.hidden + k));
  }
  if (weights.gate_up_bias.defined()) {
    gate_bias_ = element(weights.gate_up_bias, columns_.gate);
    up_bias_ = element(weights.gate_up_bias, columns_.up);
  }
  gate_.resize(hidden_rows_.size());
  up_.resize(hidden_rows_.size());
  down_.resize(hidden_rows_.size());
}

void ColumnReference::add_row(std::span<const double> x, std::span<const double> dy, double weight) {
  Chain gate, up, g;
  for (size_t k = 0; k < x.size(); ++k) {
    gate.add({x[k], 0}, gate_weights_[k]);
    up.add({x[k], 0}, up_weights_[k]);
    g.add({dy[k], 0}, down_weights_[k]);
  }
  gate.add(gate_bias_);
  up.add(up_bias_);
  Bounded h_gate = rounded(gate.result(), config_.dtype), h_up = rounded(up.result(), config_.dtype);
  Bounded act = rounded(activation_value(config_.activation, h_gate, h_up), config_.dtype);
  Bounded act_w = rounded(product(act, {weight, 0}), config_.dtype);
  ActivationGradients d = activation_gradient(config_.activation, h_gate, h_up, product(rounded(g.result(), config_.dtype), {weight, 0}));
  Bounded dh_gate = rounded(d.gate, config_.dtype), dh_up = rounded(d.up, config_.dtype);
  for (size_t at = 0; at < hidden_rows_.size(); ++at) {
    auto hidden = static_cast<size_t>(hidden_rows_[at]);
    gate_[at].add(dh_gate, x[hidden]);
    up_[at].add(dh_up, x[hidden]);
    down_[at].add(act_w, dy[hidden]);
  }
}

}  // namespace plait::verify
