#pragma once
/// A plain float64 evaluation of the layer on samples, with the bound that the contract allows: docs/numerics.md sections 5 and 9.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "observe/verify_bound.h"
#include "plait/context.h"
#include "plait/layer.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait::verify {

/// One expert, or the shared one, in its working type. Undefined biases are absent.
struct ExpertWeights {
  Tensor gate_up, gate_up_bias, down, down_bias;
};
/// Draws the weights of global expert g, or of the shared expert where g < 0, as LayerParameters has them on their rank.
Result<ExpertWeights> draw_expert(const Context& context, const LayerConfig& config, uint64_t seed, int64_t g);

/// A token: its rows as float64, and its routing.
struct TokenSample {
  std::vector<double> x, dy;
  std::vector<int64_t> ids;
  std::vector<double> weights;
};

/// What the layer makes of a token with given routing.
struct TokenReference {
  BoundedRow y, dx;
  BoundedRow dweights;  ///< one per slot
};
/// `shared_gate` (H): undefined where the shared expert has none.
Result<TokenReference> evaluate_token(const Context& context, const LayerConfig& config, uint64_t seed, const TokenSample& token,
                                      const ConstTensorView& shared_gate);

/// One activation column of an expert's weight gradients, row by row of the expert in token order.
class ColumnReference {
 public:
  /// Activation column `i`; elements of `hidden_rows` are the rows k of dw_gate_up, and the columns n of dw_down, that are wanted.
  ColumnReference(const LayerConfig& config, const ExpertWeights& weights, int64_t i, std::vector<int64_t> hidden_rows);
  void add_row(std::span<const double> x, std::span<const double> dy, double weight);

  ColumnPair columns() const { return columns_; }
  int64_t column() const { return i_; }
  std::span<const int64_t> hidden_rows() const { return hidden_rows_; }
  /// dw_gate_up[k, gate], dw_gate_up[k, up] and dw_down[i, n] for item `at` of hidden_rows.
  Bounded gate(size_t at) const { return rounded(gate_[at].result(), DType::f32); }
  Bounded up(size_t at) const { return rounded(up_[at].result(), DType::f32); }
  Bounded down(size_t at) const { return rounded(down_[at].result(), DType::f32); }

 private:
  const LayerConfig& config_;
  int64_t i_;
  ColumnPair columns_;
  std::vector<int64_t> hidden_rows_;
  std::vector<double> gate_weights_, up_weights_, down_weights_;  ///< column gate and up of gate_up (H), row i of down (H)
  double gate_bias_ = 0, up_bias_ = 0;
  std::vector<Chain> gate_, up_, down_;
};

}  // namespace plait::verify
