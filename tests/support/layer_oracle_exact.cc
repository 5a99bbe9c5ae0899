#include "support/layer_oracle_exact.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "base/float_mode.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_set.h"
#include "plait/context.h"
#include "support/layer_oracle_math.h"

namespace plait::test {
namespace {

const kernels::ElementwiseKernels& reference() { return *kernels::kernel_set(Tier::reference)->elementwise; }

float exponential(float x) {
  float y = 0;
  reference().exp(&x, &y, 1);
  return y;
}

std::vector<std::byte> row_bytes(const Matrix& m, int64_t row, DType dtype) {
  std::vector<std::byte> bytes(static_cast<size_t>(m.columns * size_of(dtype)));
  const TensorView view(bytes.data(), dtype, {m.columns});
  for (int64_t j = 0; j < m.columns; ++j) set(view, j, m.at(row, j));
  return bytes;
}

void read_row(const std::vector<std::byte>& bytes, DType dtype, Matrix& m, int64_t row) {
  const ConstTensorView view(bytes.data(), dtype, {m.columns});
  for (int64_t j = 0; j < m.columns; ++j) m.at(row, j) = static_cast<float>(get(view, j));
}

bool plain_swiglu(const Activation& a) { return a.kind == ActivationKind::swiglu; }

int64_t gate_column(const Activation& a, int64_t j) { return a.interleaved ? 2 * j : j; }
int64_t up_column(const Activation& a, int64_t n, int64_t j) { return a.interleaved ? 2 * j + 1 : n + j; }

Matrix activate(const Activation& a, DType dtype, const Matrix& h, int64_t n) {
  Matrix act(h.rows, n);
  for (int64_t i = 0; i < h.rows; ++i) {
    if (!plain_swiglu(a)) {
      std::vector<std::byte> out(static_cast<size_t>(n * size_of(dtype)));
      reference().activation_forward(a, dtype, row_bytes(h, i, dtype).data(), out.data(), n);
      read_row(out, dtype, act, i);
      continue;
    }
    for (int64_t j = 0; j < n; ++j) {
      const float gate = h.at(i, gate_column(a, j)), up = h.at(i, up_column(a, n, j));
      act.at(i, j) = rounded(gate / (1.0F + exponential(-gate)) * up, dtype);
    }
  }
  return act;
}

/// dh and act_w of one row with weight w.
void activate_backward(const Activation& a, DType dtype, const Matrix& h, const Matrix& g, const Matrix& act, int64_t i, float w, Matrix& dh,
                       Matrix& act_w) {
  const int64_t n = g.columns;
  if (absent(w)) {
    for (int64_t j = 0; j < dh.columns; ++j) dh.at(i, j) = 0;
    for (int64_t j = 0; j < n; ++j) act_w.at(i, j) = 0;
    return;
  }
  for (int64_t j = 0; j < n; ++j) act_w.at(i, j) = rounded(w * act.at(i, j), dtype);
  if (!plain_swiglu(a)) {
    std::vector<std::byte> out(static_cast<size_t>(dh.columns * size_of(dtype)));
    reference().activation_backward(a, dtype, row_bytes(h, i, dtype).data(), row_bytes(g, i, dtype).data(), w, out.data(), nullptr, n);
    read_row(out, dtype, dh, i);
    return;
  }
  for (int64_t j = 0; j < n; ++j) {
    const float gate = h.at(i, gate_column(a, j)), up = h.at(i, up_column(a, n, j)), d = w * g.at(i, j);
    const float e = exponential(-gate), s = 1.0F / (1.0F + e), rest = std::min(std::numeric_limits<float>::max(), e) * s;
    dh.at(i, gate_column(a, j)) = rounded(d * up * (s * (gate * rest + 1.0F)), dtype);
    dh.at(i, up_column(a, n, j)) = rounded(d * (gate / (1.0F + e)), dtype);
  }
}

/// An MLP over some rows, both directions.
struct ExactMlp {
  DType dtype;
  Activation activation;
  Matrix gate_up, gate_up_bias, down, down_bias;  // biases: one row, or empty

  Matrix hidden(const Matrix& x) const { return project(x, gate_up, gate_up_bias); }
  Matrix result(const Matrix& act) const { return project(act, down, down_bias); }
  Matrix activated(const Matrix& h) const { return activate(activation, dtype, h, down.rows); }

  Matrix project(const Matrix& a, const Matrix& w, const Matrix& bias) const {
    Matrix y = multiply(dtype, a, w);
    for (int64_t i = 0; i < y.rows && !bias.empty(); ++i) {
      for (int64_t j = 0; j < y.columns; ++j) y.at(i, j) += bias.at(0, j);
    }
    round_all(y, dtype);
    return y;
  }
};

struct ExactMlpBackward {
  Matrix dx, dweights;                            // dx rounded; dweights (rows, 1)
  Matrix gate_up, gate_up_bias, down, down_bias;  // unrounded sums
};

Matrix sum_rows(const Matrix& a, const std::function<float(int64_t, int64_t)>& term, const std::function<bool(int64_t)>& skip) {
  Matrix sums(1, a.columns);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.columns && !skip(i); ++j) sums.at(0, j) += term(i, j);
  }
  return sums;
}

ExactMlpBackward mlp_backward(const ExactMlp& mlp, const Matrix& x, const Matrix& dy, const std::vector<float>& weights) {
  const Matrix h = mlp.hidden(x), act = mlp.activated(h);
  const Matrix g = mlp.project(dy, transposed(mlp.down), {});
  Matrix dh(h.rows, h.columns), act_w(act.rows, act.columns);
  ExactMlpBackward out;
  out.dweights = Matrix(x.rows, 1);
  for (int64_t i = 0; i < x.rows; ++i) {
    const float w = weights[static_cast<size_t>(i)];
    activate_backward(mlp.activation, mlp.dtype, h, g, act, i, w, dh, act_w);
    out.dweights.at(i, 0) = dot(act, i, g, i);
    if (!mlp.down_bias.empty()) out.dweights.at(i, 0) += dot(mlp.down_bias, 0, dy, i);
  }
  out.dx = mlp.project(dh, transposed(mlp.gate_up), {});
  out.down = multiply(mlp.dtype, transposed(act_w), dy);
  out.gate_up = multiply(mlp.dtype, transposed(x), dh);
  out.gate_up_bias = sum_rows(
      dh, [&](int64_t i, int64_t j) { return dh.at(i, j); }, [](int64_t) { return false; });
  out.down_bias = sum_rows(
      dy, [&](int64_t i, int64_t j) { return weights[static_cast<size_t>(i)] * dy.at(i, j); },
      [&](int64_t i) { return absent(weights[static_cast<size_t>(i)]); });
  return out;
}

/// Writes a gradient sum: rounded once, or added once. A sum over no rows leaves an accumulator untouched.
void put(const Matrix& sums, const TensorView& to, bool accumulate, int64_t num_rows) {
  if (!to.defined() || (accumulate && num_rows == 0)) return;
  for (int64_t i = 0; i < to.num_elements(); ++i) {
    const float sum = sums.values[static_cast<size_t>(i)];
    set(to, i, accumulate ? static_cast<float>(get(to, i)) + sum : rounded(sum, to.dtype));
  }
}

class ExactLayer {
 public:
  ExactLayer(const LayerInputs& in, const TokenSplit& split, const RankRunOptions& options)
      : in_(in), config_(in.config), split_(split), options_(options), x_(matrix_of(in.x.view)), dy_(matrix_of(in.dy.view)) {}

  std::vector<RankResult> run() {
    for (int rank = 0; rank < num_ranks(); ++rank) results_.push_back(make_rank_result(in_, split_, rank, options_));
    route_all();
    experts();
    sum_tokens();
    return results_;
  }

 private:
  struct Entry {
    int64_t token, slot, expert;
    float weight;
    std::vector<float> row, dx;
  };

  int num_ranks() const { return static_cast<int>(split_.size()); }
  int64_t k() const { return config_.router.top_k; }
  int64_t num_experts() const { return config_.router.num_experts; }
  RankResult& result(int rank) { return results_[static_cast<size_t>(rank)]; }
  DType logits_type() const { return config_.router_f32 ? DType::f32 : config_.dtype; }

  void route_all();
  void route_rank(int rank, const Matrix& x, int64_t first);
  void experts();
  void expert(int64_t expert);
  void sum_tokens();
  void shared_rank(int rank, int64_t first, int64_t tokens);
  Matrix router_rank(int rank, int64_t first, int64_t tokens);
  MaybeRow leaf(int64_t token, int64_t expert, bool forward) const;
  std::vector<int64_t> token_rows(int64_t first, int64_t tokens) const;

  const LayerInputs& in_;
  const LayerConfig& config_;
  TokenSplit split_;
  RankRunOptions options_;
  Matrix x_, dy_;
  std::unique_ptr<Context> context_ = Context::create({.threads = 1, .kernel = "reference"}).take();
  std::vector<RankResult> results_;
  std::vector<Entry> entries_;  // token major
  Matrix dweights_;             // (T,k)
  Matrix shared_, shared_dx_;   // (T,H) terms
  std::vector<float> scale_;
  struct Routed {
    Tensor logits, ids, weights, scores;
  };
  std::vector<Routed> routed_;
};

std::vector<int64_t> ExactLayer::token_rows(int64_t first, int64_t tokens) const {
  std::vector<int64_t> rows;
  for (int64_t t = first; t < first + tokens; ++t) rows.push_back(t);
  return rows;
}

void ExactLayer::route_all() {
  int64_t first = 0;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    const int64_t tokens = split_[static_cast<size_t>(rank)];
    Routed r;
    if (in_.ids.defined()) {
      r.ids = {nullptr, rank_rows(in_.ids, split_, rank)};
      r.weights = {nullptr, rank_rows(in_.weights, split_, rank)};
    } else {
      Matrix logits = multiply(logits_type(), rows_of(x_, token_rows(first, tokens)), transposed(matrix_of(in_.router.view)));
      for (int64_t i = 0; i < logits.rows && in_.router_bias.defined(); ++i) {
        for (int64_t j = 0; j < logits.columns; ++j) logits.at(i, j) += static_cast<float>(get(in_.router_bias, j));
      }
      r.logits = make_tensor(logits_type(), {tokens, num_experts()});
      for (int64_t i = 0; i < r.logits.view.num_elements(); ++i) set(r.logits, i, rounded(logits.values[static_cast<size_t>(i)], logits_type()));
      r.ids = make_tensor(DType::i32, {tokens, k()});
      r.weights = make_tensor(DType::f32, {tokens, k()});
      r.scores = make_tensor(DType::f32, {tokens, num_experts()});
      result(rank).losses = route(*context_, config_.router, r.logits, in_.choice_bias, r.ids, r.weights, r.scores).take();
    }
    for (int64_t i = 0; i < tokens * k(); ++i) {
      const float weight = r.weights.defined() ? static_cast<float>(get(r.weights, i)) : 1.0F;
      entries_.push_back({first + i / k(), i % k(), static_cast<int64_t>(get(r.ids, i)), weight, {}, {}});
    }
    routed_.push_back(r);
    first += tokens;
  }
  dweights_ = Matrix(x_.rows, k());
}

void ExactLayer::experts() {
  for (int64_t e = 0; e < num_experts(); ++e) expert(e);
}

/// All entries of one expert, in the global token order: ranks ascending, then flat entries.
void ExactLayer::expert(int64_t expert) {
  std::vector<Entry*> chosen;
  std::vector<int64_t> tokens;
  std::vector<float> weights;
  for (Entry& entry : entries_) {
    if (entry.expert != expert) continue;
    chosen.push_back(&entry);
    tokens.push_back(entry.token);
    weights.push_back(entry.weight);
  }
  auto item = [&](const Tensor& t) { return t.defined() ? matrix_of(t.view[expert]) : Matrix(); };
  const ExactMlp mlp{config_.dtype, config_.activation, item(in_.gate_up), item(in_.gate_up_bias), item(in_.down), item(in_.down_bias)};
  const Matrix x = rows_of(x_, tokens);
  const Matrix rows = mlp.result(mlp.activated(mlp.hidden(x)));
  const ExactMlpBackward back = mlp_backward(mlp, x, rows_of(dy_, tokens), weights);
  for (size_t i = 0; i < chosen.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    for (int64_t j = 0; j < rows.columns; ++j) chosen[i]->row.push_back(rows.at(row, j));
    for (int64_t j = 0; j < back.dx.columns; ++j) chosen[i]->dx.push_back(back.dx.at(row, j));
    dweights_.at(chosen[i]->token, chosen[i]->slot) = back.dweights.at(row, 0);
  }
  const int64_t per_rank = num_experts() / num_ranks();
  RankResult& r = result(static_cast<int>(expert / per_rank));
  auto put_item = [&](const Matrix& sums, const Tensor& to) {
    if (to.defined()) put(sums, to.view[expert % per_rank], options_.accumulate, x.rows);
  };
  put_item(back.gate_up, r.gate_up);
  put_item(back.gate_up_bias, r.gate_up_bias);
  put_item(back.down, r.down);
  put_item(back.down_bias, r.down_bias);
}

MaybeRow ExactLayer::leaf(int64_t token, int64_t expert, bool forward) const {
  MaybeRow sum;
  for (int64_t slot = 0; slot < k(); ++slot) {
    const Entry& entry = entries_[static_cast<size_t>(token * k() + slot)];
    if (entry.expert != expert || absent(entry.weight)) continue;
    std::vector<float> term = forward ? entry.row : entry.dx;
    for (float& value : term) value = forward ? entry.weight * value : value;
    sum = add(sum, term);
  }
  return sum;
}

/// The shared expert of one rank's tokens: fills shared_, scale_ and shared_dx_ and its gradients.
void ExactLayer::shared_rank(int rank, int64_t first, int64_t tokens) {
  RankResult& r = result(rank);
  const ExactMlp mlp{config_.dtype, config_.activation, matrix_of(in_.shared_gate_up.view), {}, matrix_of(in_.shared_down.view), {}};
  const Matrix x = rows_of(x_, token_rows(first, tokens)), dy = rows_of(dy_, token_rows(first, tokens)), gate = matrix_of(in_.shared_gate.view);
  const Matrix rows = mlp.result(mlp.activated(mlp.hidden(x)));
  Matrix mlp_dy = dy, dz(tokens, 1);
  for (int64_t t = 0; t < tokens; ++t) {
    float s = 1;
    if (!gate.empty()) {
      s = 1.0F / (1.0F + exponential(-dot(x, t, gate, 0)));
      dz.at(t, 0) = dot(dy, t, rows, t) * s * (1.0F - s);
      for (int64_t j = 0; j < dy.columns; ++j) mlp_dy.at(t, j) = rounded(s * dy.at(t, j), config_.dtype);
    }
    scale_[static_cast<size_t>(first + t)] = s;
    for (int64_t j = 0; j < rows.columns; ++j) shared_.at(first + t, j) = rows.at(t, j);
  }
  const ExactMlpBackward back = mlp_backward(mlp, x, mlp_dy, std::vector<float>(static_cast<size_t>(tokens), 1.0F));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < back.dx.columns; ++j) {
      const float dx = back.dx.at(t, j);
      shared_dx_.at(first + t, j) = gate.empty() ? dx : rounded(dx + dz.at(t, 0) * gate.at(0, j), config_.dtype);
    }
  }
  put(back.gate_up, r.shared_gate_up, options_.accumulate, tokens);
  put(back.down, r.shared_down, options_.accumulate, tokens);
  put(sum_rows(
          x, [&](int64_t t, int64_t j) { return dz.at(t, 0) * x.at(t, j); }, [](int64_t) { return false; }),
      r.shared_gate, options_.accumulate, tokens);
}

/// The router's gradients of one rank's tokens; returns its part of dx, rounded.
Matrix ExactLayer::router_rank(int rank, int64_t first, int64_t tokens) {
  RankResult& r = result(rank);
  const Routed& routed = routed_[static_cast<size_t>(rank)];
  const Tensor dweights = make_tensor(DType::f32, {tokens, k()});
  for (int64_t i = 0; i < tokens * k(); ++i) set(dweights, i, dweights_.values[static_cast<size_t>(first * k() + i)]);
  const Tensor dlogits = make_tensor(logits_type(), {tokens, num_experts()});
  [[maybe_unused]] const Status status =
      route_backward(*context_, config_.router, routed.logits, routed.scores, routed.ids, routed.weights, dweights, options_.loss_scale, dlogits);
  const Matrix d = matrix_of(dlogits.view), x = rows_of(x_, token_rows(first, tokens));
  put(multiply(logits_type(), transposed(d), x), r.router, options_.accumulate, tokens);
  put(sum_rows(
          d, [&](int64_t i, int64_t j) { return d.at(i, j); }, [](int64_t) { return false; }),
      r.router_bias, options_.accumulate, tokens);
  Matrix dx = multiply(logits_type(), d, matrix_of(in_.router.view));
  round_all(dx, config_.dtype);
  return dx;
}

void ExactLayer::sum_tokens() {
  shared_ = shared_dx_ = Matrix(x_.rows, x_.columns);
  scale_.resize(static_cast<size_t>(x_.rows));
  const bool shared = config_.shared_intermediate > 0;
  int64_t first = 0;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    const int64_t tokens = split_[static_cast<size_t>(rank)];
    if (shared) shared_rank(rank, first, tokens);
    const Matrix dx_router = in_.ids.defined() ? Matrix() : router_rank(rank, first, tokens);
    for (int64_t i = 0; i < tokens; ++i) {
      const int64_t t = first + i;
      MaybeRow y = tree(0, num_experts(), [&](int64_t e) { return leaf(t, e, true); });
      MaybeRow dx = tree(0, num_experts(), [&](int64_t e) { return leaf(t, e, false); });
      std::vector<float> gated, shared_dx, router_dx;
      for (int64_t j = 0; j < x_.columns; ++j) {
        gated.push_back(scale_[static_cast<size_t>(t)] * shared_.at(t, j));
        shared_dx.push_back(shared_dx_.at(t, j));
        if (!dx_router.empty()) router_dx.push_back(dx_router.at(i, j));
      }
      if (shared) y = add(y, gated);
      if (!dx_router.empty()) dx = add(dx, router_dx);
      if (shared) dx = add(dx, shared_dx);
      for (int64_t j = 0; j < x_.columns; ++j) {
        set(result(rank).y, i * x_.columns + j, rounded(y ? (*y)[static_cast<size_t>(j)] : 0.0F, config_.dtype));
        set(result(rank).dx, i * x_.columns + j, rounded(dx ? (*dx)[static_cast<size_t>(j)] : 0.0F, config_.dtype));
      }
      for (int64_t slot = 0; slot < k(); ++slot) set(result(rank).dweights, i * k() + slot, dweights_.at(t, slot));
    }
    first += tokens;
  }
}

}  // namespace

std::vector<RankResult> exact_layer(const LayerInputs& inputs, const TokenSplit& split, const RankRunOptions& options) {
  FloatMode mode;
  return ExactLayer(inputs, split, options).run();
}

}  // namespace plait::test
