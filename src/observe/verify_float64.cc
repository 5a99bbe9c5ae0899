#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/status_macros.h"
#include "observe/measure_gather.h"
#include "observe/verify_call.h"
#include "observe/verify_reference.h"
#include "plait/routing.h"

namespace plait::verify {
namespace {

constexpr int64_t block_tokens = 256;  // rows of the global batch in memory at a time
constexpr double large_sample = 2e7;   // multiply-adds of a token above which one token per rank is enough
constexpr int64_t column_experts = 2;  // experts per rank whose weight gradients are sampled

/// The element that uses most of its bound.
struct Worst {
  double used = 0;  ///< |computed - exact| / bound
  std::string where = "nothing to compare";

  void look(double computed, const Bounded& exact, const std::string& at) {
    double distance = std::fabs(computed - exact.value);
    double share = exact.error > 0 ? distance / exact.error : distance > 0 ? HUGE_VAL : 0;
    if (std::isnan(distance)) share = HUGE_VAL;
    if (share < used) return;
    used = share;
    where = fmt::format("{}: {:.9g}, exact {:.9g}, {:.2g} of the bound", at, computed, exact.value, share);
  }
};

Status add_worst(VerifyCall& call, std::string_view result, const Worst& worst) {
  return call.add("numeric", fmt::format("{} against float64: {}", name(call.dispatchers[0]), result), worst.used <= 1, worst.where);
}

ConstTensorView find_result(const std::vector<NamedResult>& results, std::string_view name) {
  for (const NamedResult& result : results) {
    if (result.name == name) return result.view;
  }
  return {};
}

std::vector<double> row_of(const ConstTensorView& view, int64_t row) {
  std::vector<double> values;
  for (int64_t i = 0; i < view.shape[1]; ++i) values.push_back(element(view, row * view.shape[1] + i));
  return values;
}

/// First and last token of this rank.
Status check_tokens(VerifyCall& call, const LayerRun& run, int64_t first_token) {
  const LayerConfig& config = run.config();
  std::vector<NamedResult> results = run.results(true);
  ConstTensorView y = find_result(results, "y"), dx = find_result(results, "dx"), dweights = find_result(results, "dweights");
  int64_t tokens = y.shape[0], k = config.router.top_k;
  double work = static_cast<double>(k * config.hidden) * static_cast<double>(config.activation.hidden_columns(config.intermediate));
  std::vector<int64_t> sample;
  if (tokens > 0) sample.push_back(0);
  if (tokens > 1 && work < large_sample) sample.push_back(tokens - 1);
  Worst worst_y, worst_dx, worst_dweights;
  for (int64_t t : sample) {
    TokenSample token{row_of(run.inputs().x, t), row_of(run.inputs().dy, t), {}, {}};
    for (int64_t slot = 0; slot < k; ++slot) {
      token.ids.push_back(run.state().ids.as<int32_t>()[t * k + slot]);
      token.weights.push_back(static_cast<double>(run.state().weights.as<float>()[t * k + slot]));
    }
    PLAIT_ASSIGN_OR_RETURN(TokenReference exact,
                           evaluate_token(call.context, config, call.run_case.seed, token, run.parameters().weights().shared_gate));
    for (int64_t n = 0; n < config.hidden; ++n) {
      std::string at = fmt::format("token {}, column {}", first_token + t, n);
      worst_y.look(element(y, t * config.hidden + n), exact.y[static_cast<size_t>(n)], at);
      worst_dx.look(element(dx, t * config.hidden + n), exact.dx[static_cast<size_t>(n)], at);
    }
    for (int64_t slot = 0; slot < k; ++slot) {
      worst_dweights.look(element(dweights, t * k + slot), exact.dweights[static_cast<size_t>(slot)],
                          fmt::format("token {}, slot {}", first_token + t, slot));
    }
  }
  PLAIT_RETURN_IF_ERROR(add_worst(call, "y", worst_y));
  PLAIT_RETURN_IF_ERROR(add_worst(call, "dx", worst_dx));
  return add_worst(call, "dweights", worst_dweights);
}

struct Entry {
  int32_t id;
  float weight;
};

/// The busiest and the first of this rank's experts.
std::vector<int64_t> sample_experts(const RoutingPlan& plan) {
  std::span<const int64_t> rows = plan.expert_rows();
  std::vector<int64_t> sample{std::max_element(rows.begin(), rows.end()) - rows.begin()};
  if (column_experts > 1 && sample[0] != 0) sample.push_back(0);
  return sample;
}

/// Adds every row of `references[i]`'s expert, in global token order. `entries` are those of all tokens.
Status add_rows(VerifyCall& call, std::span<const Entry> entries, std::span<const int64_t> experts, std::vector<ColumnReference>& references) {
  int64_t num_tokens = call.run_case.ranks * call.run_case.tokens, k = call.run_case.layer.router.top_k;
  for (int64_t begin = 0; begin < num_tokens; begin += block_tokens) {
    TokenRange range{begin, std::min(block_tokens, num_tokens - begin)};
    PLAIT_ASSIGN_OR_RETURN(CaseInputs inputs, make_inputs(call.context, call.run_case, range));
    for (int64_t i = 0; i < range.count * k; ++i) {
      const Entry& entry = entries[static_cast<size_t>(begin * k + i)];
      for (size_t e = 0; e < experts.size(); ++e) {
        if (entry.id != experts[e]) continue;
        references[e].add_row(row_of(inputs.x, i / k), row_of(inputs.dy, i / k), static_cast<double>(entry.weight));
      }
    }
  }
  return {};
}

Status check_weight_gradients(VerifyCall& call, const LayerRun& run) {
  const LayerConfig& config = run.config();
  std::vector<Entry> own;
  const Tensor &ids = run.state().ids, &weights = run.state().weights;
  for (int64_t i = 0; i < ids.view.num_elements(); ++i) own.push_back({ids.as<int32_t>()[i], weights.as<float>()[i]});
  PLAIT_ASSIGN_OR_RETURN(std::vector<Entry> entries, gather<Entry>(call.group, "verification", own));
  std::vector<int64_t> local = sample_experts(run.state().plan), experts;
  std::vector<ColumnReference> references;
  for (int64_t j : local) {
    experts.push_back(run.state().plan.placement().global(call.group.rank(), j));
    PLAIT_ASSIGN_OR_RETURN(ExpertWeights drawn, draw_expert(call.context, config, call.run_case.seed, experts.back()));
    references.emplace_back(config, drawn, config.intermediate / 2, std::vector<int64_t>{0, config.hidden / 2, config.hidden - 1});
  }
  PLAIT_RETURN_IF_ERROR(add_rows(call, entries, experts, references));
  std::vector<NamedResult> results = run.results(true);
  ConstTensorView gate_up = find_result(results, "dw_gate_up"), down = find_result(results, "dw_down");
  Worst worst_gate_up, worst_down;
  for (size_t e = 0; e < experts.size(); ++e) {
    const ColumnReference& reference = references[e];
    for (size_t i = 0; i < reference.hidden_rows().size(); ++i) {
      int64_t k = reference.hidden_rows()[i], row = (local[e] * config.hidden + k) * gate_up.shape[2];
      std::string at = fmt::format("expert {}, row {}", experts[e], k);
      worst_gate_up.look(element(gate_up, row + reference.columns().gate), reference.gate(i), at);
      if (config.activation.gated()) worst_gate_up.look(element(gate_up, row + reference.columns().up), reference.up(i), at);
      worst_down.look(element(down, (local[e] * config.intermediate + reference.column()) * config.hidden + k), reference.down(i),
                      fmt::format("expert {}, column {}", experts[e], k));
    }
  }
  PLAIT_RETURN_IF_ERROR(add_worst(call, "dw_gate_up", worst_gate_up));
  return add_worst(call, "dw_down", worst_down);
}

}  // namespace

Status verify_float64(VerifyCall& call) {
  TokenRange range = rank_tokens(call.run_case, call.group.rank());
  PLAIT_ASSIGN_OR_RETURN(CaseInputs inputs, make_inputs(call.context, call.run_case, range));
  PLAIT_ASSIGN_OR_RETURN(LayerRun run, LayerRun::create(call.context, call.group, call.run_case, std::move(inputs)));
  Tensor ids = run.inputs().ids, weights = run.inputs().weights;
  if (!ids.defined()) {
    PLAIT_RETURN_IF_ERROR(run.forward(call.dispatchers[0]));
    ids = run.state().ids;
    weights = run.state().weights;
  }
  run.set_routing({ids, weights});
  PLAIT_RETURN_IF_ERROR(call.step(run, call.dispatchers[0]));
  PLAIT_RETURN_IF_ERROR(check_tokens(call, run, range.first));
  return check_weight_gradients(call, run);
}

}  // namespace plait::verify
