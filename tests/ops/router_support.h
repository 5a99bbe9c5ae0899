#pragma once
/// The router's operands in one place, and a float64 oracle of operators.md section 1 that shares no code with it.

#include <memory>
#include <string>
#include <vector>

#include "plait/router.h"
#include "support/test_tensors.h"

namespace plait::test {

std::unique_ptr<Context> router_context(int threads = 1, const std::string& kernel = "");

/// Everything route() takes and gives.
struct Routed {
  Tensor logits, bias;  ///< bias may be undefined
  Tensor ids, weights, scores;
  RouterLosses losses;
};
/// Runs route(); fails the test where it returns an error.
Routed run_route(const Context& context, const RouterConfig& config, const Tensor& logits, const Tensor& bias = {});
Status route_status(const Context& context, const RouterConfig& config, const Tensor& logits, const Tensor& bias = {}, int rank = -1);

std::vector<int> ids_of(const Routed& routed);

/// One token of the definition in float64. `ids` are given, so that rounding cannot change the choice.
struct OracleToken {
  std::vector<double> scores;       ///< (E)
  std::vector<double> mean_scores;  ///< (E), what P averages
  std::vector<double> weights;      ///< (k)
  double logsumexp = 0;
};
OracleToken oracle_token(const RouterConfig& config, const std::vector<double>& logits, const std::vector<int>& ids);

/// sum(dweights * weights) + coefficients * losses for all tokens, the choice (and with it f) held fixed: what backward differentiates.
struct OracleTotal {
  double load_balancing = 0, z = 0, total = 0;
};
OracleTotal oracle_total(const RouterConfig& config, const std::vector<double>& logits, const std::vector<int>& ids,
                         const std::vector<double>& dweights);

/// The k best by choice value in float32, by the plain definition: sort all that take part.
std::vector<int> oracle_choice(const RouterConfig& config, const std::vector<float>& choice_values);

}  // namespace plait::test
