#include "observe/bench_layer.h"

namespace plait {
namespace {

/// Sizes of a step as doubles: products of them exceed 64 bits for no model, but their sums are times anyway.
struct Sizes {
  Sizes(const Case& c, int64_t num_rows)
      : tokens(static_cast<double>(c.tokens)),
        rows(static_cast<double>(num_rows)),
        hidden(static_cast<double>(c.layer.hidden)),
        intermediate(static_cast<double>(c.layer.intermediate)),
        columns(static_cast<double>(c.layer.activation.hidden_columns(c.layer.intermediate))),
        experts(static_cast<double>(c.layer.router.num_experts)),
        shared(static_cast<double>(c.layer.shared_intermediate)),
        shared_columns(static_cast<double>(c.layer.activation.hidden_columns(c.layer.shared_intermediate))),
        element(static_cast<double>(size_of(c.layer.dtype))) {}
  double tokens, rows, hidden, intermediate, columns, experts, shared, shared_columns, element;

  /// x (m,k) times g matrices (k,n): each operand and the result once.
  StageWork matmul(double m, double k, double n, double g) const { return {2 * m * k * n, (m * k + g * k * n + m * n) * element}; }
  StageWork elementwise(double elements) const { return {0, elements * element}; }
};

StageWork operator+(const StageWork& a, const StageWork& b) { return {a.flops + b.flops, a.bytes + b.bytes}; }
StageWork operator*(double factor, const StageWork& a) { return {factor * a.flops, factor * a.bytes}; }

}  // namespace

StageWork stage_work(const Case& run_case, int64_t rows, Stage stage, Dispatcher dispatcher) {
  const Sizes s(run_case, rows);
  const bool backward = run_case.backward, permutes = dispatcher == Dispatcher::alltoall || dispatcher == Dispatcher::eager;
  const double directions = backward ? 2 : 1;
  switch (stage) {
    case Stage::route:
      return s.matmul(s.tokens, s.hidden, s.experts, 1);
    case Stage::permute:
      if (!permutes) return {};  // only where rows are copied together
      return directions * s.elementwise(s.tokens * s.hidden + s.rows * s.hidden);
    case Stage::gate_up:
      return s.matmul(s.rows, s.hidden, s.columns, s.experts);
    case Stage::activation:
      return s.elementwise(s.rows * (s.columns + s.intermediate));
    case Stage::down:
      return s.matmul(s.rows, s.intermediate, s.hidden, s.experts);
    case Stage::weighted_sum:
      return directions * s.elementwise(s.rows * s.hidden + s.tokens * s.hidden);
    case Stage::shared_expert:
      if (s.shared == 0) return {};
      return (backward ? 3 : 1) * (s.matmul(s.tokens, s.hidden, s.shared_columns, 1) + s.matmul(s.tokens, s.shared, s.hidden, 1));
    case Stage::backward_down:
      return s.matmul(s.rows, s.hidden, s.intermediate, s.experts);
    case Stage::backward_activation:
      return s.elementwise(2 * s.rows * (s.columns + s.intermediate));
    case Stage::backward_gate_up:
      return s.matmul(s.rows, s.columns, s.hidden, s.experts);
    case Stage::weight_gradient:
      return s.matmul(s.rows, s.hidden, s.columns, s.experts) + s.matmul(s.rows, s.intermediate, s.hidden, s.experts);
    case Stage::backward_route:
      return 2 * s.matmul(s.tokens, s.hidden, s.experts, 1);
    default:
      return {};
  }
}

}  // namespace plait
