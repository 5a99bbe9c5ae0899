#include "support/layer_oracle.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace plait::test {
namespace {

Doubles doubles(const Tensor& t) { return t.defined() ? to_vector(t) : Doubles(); }

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct ActivationValue {
  double act, dgate, dup;
};

ActivationValue activate(const Activation& a, double gate, double up) {
  switch (a.kind) {
    case ActivationKind::swiglu: {
      const double s = sigmoid(gate);
      return {gate * s * up, up * s * (1 + gate * (1 - s)), gate * s};
    }
    case ActivationKind::swiglu_clamped: {
      const double g = std::min<double>(gate, a.limit), u = std::clamp<double>(up, -a.limit, a.limit), s = sigmoid(a.alpha * g);
      return {(u + 1) * g * s, gate > a.limit ? 0 : (u + 1) * s * (1 + a.alpha * g * (1 - s)), std::fabs(up) > a.limit ? 0 : g * s};
    }
    case ActivationKind::geglu_tanh: {
      const double c = std::sqrt(2 / std::acos(-1.0)), t = std::tanh(c * (gate + 0.044715 * gate * gate * gate));
      const double value = 0.5 * gate * (1 + t);
      return {value * up, up * (0.5 * (1 + t) + 0.5 * gate * (1 - t * t) * c * (1 + 3 * 0.044715 * gate * gate)), value};
    }
    case ActivationKind::relu2:
      return {gate > 0 ? gate * gate : 0, gate > 0 ? 2 * gate : 0, 0};
  }
  return {};
}

}  // namespace

/// One MLP on one row; offsets into the parameters, so that gradients use the same.
struct DoubleLayer::Mlp {
  const Activation& activation;
  int64_t hidden, inner, columns;
  const double *gate_up, *gate_up_bias, *down, *down_bias;

  int64_t gate_column(int64_t j) const { return activation.gated() && activation.interleaved ? 2 * j : j; }
  int64_t up_column(int64_t j) const { return activation.interleaved ? 2 * j + 1 : inner + j; }

  Doubles hidden_row(const double* x) const {
    Doubles h(static_cast<size_t>(columns));
    for (int64_t c = 0; c < columns; ++c) {
      double sum = gate_up_bias != nullptr ? gate_up_bias[c] : 0;
      for (int64_t i = 0; i < hidden; ++i) sum += x[i] * gate_up[i * columns + c];
      h[static_cast<size_t>(c)] = sum;
    }
    return h;
  }
  ActivationValue value(const Doubles& h, int64_t j) const {
    const double up = activation.gated() ? h[static_cast<size_t>(up_column(j))] : 0;
    return activate(activation, h[static_cast<size_t>(gate_column(j))], up);
  }
  Doubles forward(const double* x) const {
    const Doubles h = hidden_row(x);
    Doubles row(static_cast<size_t>(hidden));
    for (int64_t i = 0; i < hidden; ++i) row[static_cast<size_t>(i)] = down_bias != nullptr ? down_bias[i] : 0;
    for (int64_t j = 0; j < inner; ++j) {
      const double act = value(h, j).act;
      for (int64_t i = 0; i < hidden; ++i) row[static_cast<size_t>(i)] += act * down[j * hidden + i];
    }
    return row;
  }
  struct Targets {
    double *x, *gate_up, *gate_up_bias, *down, *down_bias;
  };
  /// Adds the gradients for one row whose result has the gradient w * dy; returns dot(dy, row).
  double backward(const double* x, const double* dy, double w, const Targets& to) const {
    const Doubles h = hidden_row(x), row = forward(x);
    double dot = 0;
    for (int64_t i = 0; i < hidden; ++i) {
      dot += dy[i] * row[static_cast<size_t>(i)];
      if (to.down_bias != nullptr) to.down_bias[i] += w * dy[i];
    }
    for (int64_t j = 0; j < inner; ++j) {
      const ActivationValue v = value(h, j);
      double g = 0;
      for (int64_t i = 0; i < hidden; ++i) {
        g += dy[i] * down[j * hidden + i];
        to.down[j * hidden + i] += w * v.act * dy[i];
      }
      hidden_backward(x, gate_column(j), w * g * v.dgate, to);
      if (activation.gated()) hidden_backward(x, up_column(j), w * g * v.dup, to);
    }
    return dot;
  }
  void hidden_backward(const double* x, int64_t c, double dh, const Targets& to) const {
    if (to.gate_up_bias != nullptr) to.gate_up_bias[c] += dh;
    for (int64_t i = 0; i < hidden; ++i) {
      to.gate_up[i * columns + c] += dh * x[i];
      to.x[i] += dh * gate_up[i * columns + c];
    }
  }
};

DoubleLayer::DoubleLayer(const LayerInputs& in, std::vector<int64_t> ids)
    : config_(in.config),
      given_(in.ids.defined()),
      tokens_(in.num_tokens()),
      hidden_(in.config.hidden),
      inner_(in.config.intermediate),
      num_experts_(in.config.router.num_experts),
      k_(in.config.router.top_k),
      columns_(in.config.activation.hidden_columns(in.config.intermediate)),
      dy_(doubles(in.dy)),
      ids_(std::move(ids)) {
  parameters.x = doubles(in.x);
  parameters.router = doubles(in.router);
  parameters.router_bias = doubles(in.router_bias);
  parameters.gate_up = doubles(in.gate_up);
  parameters.gate_up_bias = doubles(in.gate_up_bias);
  parameters.down = doubles(in.down);
  parameters.down_bias = doubles(in.down_bias);
  parameters.shared_gate_up = doubles(in.shared_gate_up);
  parameters.shared_down = doubles(in.shared_down);
  parameters.shared_gate = doubles(in.shared_gate);
  if (given_) parameters.weights = in.weights.defined() ? doubles(in.weights) : Doubles(static_cast<size_t>(tokens_ * k_), 1.0);
}

DoubleLayer::Mlp DoubleLayer::expert(int64_t e) const {
  const DoubleParameters& p = parameters;
  return {config_.activation,
          hidden_,
          inner_,
          columns_,
          p.gate_up.data() + e * hidden_ * columns_,
          p.gate_up_bias.empty() ? nullptr : p.gate_up_bias.data() + e * columns_,
          p.down.data() + e * inner_ * hidden_,
          p.down_bias.empty() ? nullptr : p.down_bias.data() + e * hidden_};
}

DoubleLayer::Mlp DoubleLayer::shared() const {
  const int64_t inner = config_.shared_intermediate;
  return {config_.activation,
          hidden_,
          inner,
          config_.activation.hidden_columns(inner),
          parameters.shared_gate_up.data(),
          nullptr,
          parameters.shared_down.data(),
          nullptr};
}

Doubles DoubleLayer::logits() const {
  Doubles all(static_cast<size_t>(tokens_ * num_experts_));
  for (int64_t t = 0; t < tokens_; ++t) {
    for (int64_t e = 0; e < num_experts_; ++e) {
      double sum = parameters.router_bias.empty() ? 0 : parameters.router_bias[static_cast<size_t>(e)];
      for (int64_t i = 0; i < hidden_; ++i)
        sum += parameters.x[static_cast<size_t>(t * hidden_ + i)] * parameters.router[static_cast<size_t>(e * hidden_ + i)];
      all[static_cast<size_t>(t * num_experts_ + e)] = sum;
    }
  }
  return all;
}

namespace {

Doubles row_of(const Doubles& all, int64_t t, int64_t n) { return Doubles(all.begin() + t * n, all.begin() + (t + 1) * n); }

double logsumexp(const Doubles& row) {
  const double max = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (double v : row) sum += std::exp(v - max);
  return max + std::log(sum);
}

Doubles softmax(const Doubles& row) {
  const double lse = logsumexp(row);
  Doubles p;
  for (double v : row) p.push_back(std::exp(v - lse));
  return p;
}

double inner_product(const Doubles& a, const Doubles& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

/// From the gradient of v / sum(v) to that of v, given q = v / sum(v).
Doubles normalised_backward(const Doubles& dq, const Doubles& q, double sum) {
  const double mean = inner_product(dq, q);
  Doubles d;
  for (double v : dq) d.push_back((v - mean) / sum);
  return d;
}

}  // namespace

Doubles DoubleLayer::scores(const Doubles& row) const {
  if (config_.router.score != ScoreFunction::sigmoid) return softmax(row);
  Doubles s;
  for (double v : row) s.push_back(sigmoid(v));
  return s;
}

Doubles DoubleLayer::entry_weights() const {
  if (given_) return parameters.weights;
  const Doubles all = logits();
  Doubles weights;
  for (int64_t t = 0; t < tokens_; ++t) {
    const Doubles row = row_of(all, t, num_experts_);
    const bool chosen_only = config_.router.score == ScoreFunction::topk_softmax;
    const Doubles values = chosen_only ? row : scores(row);
    Doubles chosen;
    for (int64_t s = 0; s < k_; ++s) chosen.push_back(values[static_cast<size_t>(ids_[static_cast<size_t>(t * k_ + s)])]);
    if (chosen_only) chosen = softmax(chosen);
    const double sum = std::accumulate(chosen.begin(), chosen.end(), 0.0);
    for (double w : chosen) weights.push_back(config_.router.scaling * (config_.router.norm_topk && !chosen_only ? w / sum : w));
  }
  return weights;
}

Doubles DoubleLayer::forward() const {
  const Doubles weights = entry_weights();
  Doubles y(static_cast<size_t>(tokens_ * hidden_));
  for (int64_t t = 0; t < tokens_; ++t) {
    const double* x = parameters.x.data() + t * hidden_;
    auto accumulate = [&](const Doubles& row, double w) {
      for (int64_t i = 0; i < hidden_; ++i) y[static_cast<size_t>(t * hidden_ + i)] += w * row[static_cast<size_t>(i)];
    };
    for (int64_t s = t * k_; s < (t + 1) * k_; ++s) accumulate(expert(ids_[static_cast<size_t>(s)]).forward(x), weights[static_cast<size_t>(s)]);
    if (config_.shared_intermediate == 0) continue;
    double gate = 1;
    if (config_.shared_gate) gate = sigmoid(std::inner_product(x, x + hidden_, parameters.shared_gate.begin(), 0.0));
    accumulate(shared().forward(x), gate);
  }
  return y;
}

/// Share of the entries that chose each expert.
Doubles DoubleLayer::load() const {
  Doubles f(static_cast<size_t>(num_experts_));
  for (int64_t id : ids_) f[static_cast<size_t>(id)] += 1.0 / static_cast<double>(ids_.size());
  return f;
}

double DoubleLayer::load_balancing() const {
  const Doubles all = logits(), f = load();
  double sum = 0;
  for (int64_t t = 0; t < tokens_; ++t) {
    Doubles p = scores(row_of(all, t, num_experts_));
    const double total = std::accumulate(p.begin(), p.end(), 0.0);
    sum += inner_product(f, p) / total;
  }
  const double scale = config_.router.aux_loss_times_k ? static_cast<double>(k_) : 1;
  return scale * static_cast<double>(num_experts_) * sum / static_cast<double>(tokens_);
}

double DoubleLayer::z() const {
  const Doubles all = logits();
  double sum = 0;
  for (int64_t t = 0; t < tokens_; ++t) sum += std::pow(logsumexp(row_of(all, t, num_experts_)), 2);
  return sum / static_cast<double>(tokens_);
}

double DoubleLayer::objective() const {
  const Doubles y = forward();
  double sum = inner_product(y, dy_);
  if (!given_) sum += config_.router.aux_loss * load_balancing() + config_.router.z_loss * z();
  return sum;
}

/// Gradient of one token's logits.
Doubles DoubleLayer::score_gradient(const Doubles& row, const Doubles& s, int64_t t, const Doubles& dweights) const {
  const RouterConfig& r = config_.router;
  const Doubles p = softmax(row), f = load();
  const double tokens = static_cast<double>(tokens_), total = std::accumulate(s.begin(), s.end(), 0.0);
  Doubles chosen, dchosen;
  for (int64_t i = t * k_; i < (t + 1) * k_; ++i) {
    const auto id = static_cast<size_t>(ids_[static_cast<size_t>(i)]);
    chosen.push_back(r.score == ScoreFunction::topk_softmax ? row[id] : s[id]);
    dchosen.push_back(r.scaling * dweights[static_cast<size_t>(i)]);
  }
  Doubles dlogits(s.size()), q = s, dq(s.size());
  const double scale = r.aux_loss * (r.aux_loss_times_k ? static_cast<double>(k_) : 1) * static_cast<double>(num_experts_) / tokens;
  for (size_t j = 0; j < s.size(); ++j) {
    q[j] /= total;
    dq[j] = scale * f[j];
  }
  Doubles ds = normalised_backward(dq, q, total);
  if (r.score == ScoreFunction::topk_softmax) {
    const Doubles w = softmax(chosen);
    const double mean = inner_product(dchosen, w);
    for (size_t i = 0; i < w.size(); ++i) dlogits[static_cast<size_t>(ids_[static_cast<size_t>(t * k_) + i])] += w[i] * (dchosen[i] - mean);
  } else {
    if (r.norm_topk) {
      const double sum = std::accumulate(chosen.begin(), chosen.end(), 0.0);
      for (double& c : chosen) c /= sum;
      dchosen = normalised_backward(dchosen, chosen, sum);
    }
    for (size_t i = 0; i < dchosen.size(); ++i) ds[static_cast<size_t>(ids_[static_cast<size_t>(t * k_) + i])] += dchosen[i];
  }
  const double mean = inner_product(ds, s);
  const double lse = logsumexp(row);
  for (size_t j = 0; j < s.size(); ++j) {
    dlogits[j] += r.score == ScoreFunction::sigmoid ? ds[j] * s[j] * (1 - s[j]) : s[j] * (ds[j] - mean);
    dlogits[j] += r.z_loss * 2 * lse * p[j] / tokens;
  }
  return dlogits;
}

void DoubleLayer::router_gradients(const Doubles& dweights, DoubleParameters& out) const {
  const Doubles all = logits();
  for (int64_t t = 0; t < tokens_; ++t) {
    const Doubles row = row_of(all, t, num_experts_);
    const Doubles d = score_gradient(row, scores(row), t, dweights);
    for (int64_t e = 0; e < num_experts_; ++e) {
      const double de = d[static_cast<size_t>(e)];
      if (!out.router_bias.empty()) out.router_bias[static_cast<size_t>(e)] += de;
      for (int64_t i = 0; i < hidden_; ++i) {
        out.router[static_cast<size_t>(e * hidden_ + i)] += de * parameters.x[static_cast<size_t>(t * hidden_ + i)];
        out.x[static_cast<size_t>(t * hidden_ + i)] += de * parameters.router[static_cast<size_t>(e * hidden_ + i)];
      }
    }
  }
}

DoubleParameters DoubleLayer::gradients() const {
  DoubleParameters out = parameters;
  out.for_each([&](const char*, auto member) { std::fill((out.*member).begin(), (out.*member).end(), 0.0); });
  const Doubles weights = entry_weights();
  out.weights.assign(weights.size(), 0.0);
  auto at = [](Doubles& v, int64_t offset) { return v.empty() ? nullptr : v.data() + offset; };
  for (int64_t t = 0; t < tokens_; ++t) {
    const double *x = parameters.x.data() + t * hidden_, *dy = dy_.data() + t * hidden_;
    for (int64_t s = t * k_; s < (t + 1) * k_; ++s) {
      const int64_t e = ids_[static_cast<size_t>(s)];
      const Mlp::Targets to{at(out.x, t * hidden_), at(out.gate_up, e * hidden_ * columns_), at(out.gate_up_bias, e * columns_),
                            at(out.down, e * inner_ * hidden_), at(out.down_bias, e * hidden_)};
      out.weights[static_cast<size_t>(s)] = expert(e).backward(x, dy, weights[static_cast<size_t>(s)], to);
    }
    if (config_.shared_intermediate == 0) continue;
    const Mlp::Targets to{at(out.x, t * hidden_), out.shared_gate_up.data(), nullptr, out.shared_down.data(), nullptr};
    double gate = 1;
    if (config_.shared_gate) gate = sigmoid(std::inner_product(x, x + hidden_, parameters.shared_gate.begin(), 0.0));
    const double dz = shared().backward(x, dy, gate, to) * gate * (1 - gate);
    for (int64_t i = 0; config_.shared_gate && i < hidden_; ++i) {
      out.shared_gate[static_cast<size_t>(i)] += dz * x[i];
      out.x[static_cast<size_t>(t * hidden_ + i)] += dz * parameters.shared_gate[static_cast<size_t>(i)];
    }
  }
  if (!given_) router_gradients(out.weights, out);
  return out;
}

}  // namespace plait::test
