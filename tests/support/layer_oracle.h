#pragma once
/// The layer in double precision, plain sums, gradients by formula: what the layer's results must be close to. One rank, whole batch.

#include <cstdint>
#include <vector>

#include "plait/layer.h"
#include "support/layer_case.h"

namespace plait::test {

using Doubles = std::vector<double>;

/// Everything a gradient exists for, row major as in LayerInputs; empty where the layer has none.
struct DoubleParameters {
  Doubles x, weights, router, router_bias, gate_up, gate_up_bias, down, down_bias, shared_gate_up, shared_down, shared_gate;

  /// Calls visit(name, member) for all members.
  template <typename Visit>
  void for_each(Visit visit) {
    visit("x", &DoubleParameters::x);
    visit("weights", &DoubleParameters::weights);
    visit("router", &DoubleParameters::router);
    visit("router_bias", &DoubleParameters::router_bias);
    visit("gate_up", &DoubleParameters::gate_up);
    visit("gate_up_bias", &DoubleParameters::gate_up_bias);
    visit("down", &DoubleParameters::down);
    visit("down_bias", &DoubleParameters::down_bias);
    visit("shared_gate_up", &DoubleParameters::shared_gate_up);
    visit("shared_down", &DoubleParameters::shared_down);
    visit("shared_gate", &DoubleParameters::shared_gate);
  }
};

/// With given routing `weights` are parameters; else they follow from the logits, and only the choice `ids` is taken over.
class DoubleLayer {
 public:
  /// `ids` (T*k): the experts that the layer under test chose.
  DoubleLayer(const LayerInputs& inputs, std::vector<int64_t> ids);

  DoubleParameters parameters;

  Doubles forward() const;             ///< y (T,H)
  Doubles entry_weights() const;       ///< (T,k)
  double load_balancing() const;       ///< before its coefficient
  double z() const;                    ///< before its coefficient
  double objective() const;            ///< sum of y * dy, plus the losses times their coefficients
  DoubleParameters gradients() const;  ///< of the objective, by formula; `weights` also where the router decides

 private:
  struct Mlp;
  Mlp expert(int64_t e) const;
  Mlp shared() const;
  Doubles logits() const;
  Doubles scores(const Doubles& row) const;
  void router_gradients(const Doubles& dweights, DoubleParameters& out) const;
  Doubles score_gradient(const Doubles& row_logits, const Doubles& row_scores, int64_t t, const Doubles& dweights) const;
  Doubles load() const;

  LayerConfig config_;
  bool given_;
  int64_t tokens_, hidden_, inner_, num_experts_, k_, columns_;
  Doubles dy_;
  std::vector<int64_t> ids_;
};

}  // namespace plait::test
