#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "observe/routing_report.h"
#include "observe/verify_call.h"

namespace plait::verify {
namespace {

/// Entries with an id outside [0,E), or that a token has twice, or a weight that is negative or not finite.
int64_t num_bad_entries(const LayerRun& run) {
  const Tensor &ids = run.state().ids, &weights = run.state().weights;
  int64_t k = ids.view.shape[1], bad = 0;
  for (int64_t i = 0; i < ids.view.num_elements(); ++i) {
    const int32_t *token = ids.as<int32_t>() + i / k * k, *own = ids.as<int32_t>() + i;
    float weight = weights.as<float>()[i];
    bool in_range = *own >= 0 && *own < run.config().router.num_experts;
    bad += in_range && std::find(token, own, *own) == own && std::isfinite(weight) && weight >= 0 ? 0 : 1;
  }
  return bad;
}

/// Each entry's id and weight, to the bit, and the entries of each rank and expert.
struct Decision {
  std::vector<int32_t> ids;
  std::vector<uint32_t> weight_bits;
  std::vector<int64_t> counts;
  bool operator==(const Decision&) const = default;
};

Decision decision(const LayerRun& run) {
  const Tensor &ids = run.state().ids, &weights = run.state().weights;
  Decision decision;
  decision.counts = run.state().plan.counts().counts;
  for (int64_t i = 0; i < ids.view.num_elements(); ++i) {
    decision.ids.push_back(ids.as<int32_t>()[i]);
    decision.weight_bits.push_back(std::bit_cast<uint32_t>(weights.as<float>()[i]));
  }
  return decision;
}

Status add_distribution(VerifyCall& call, const LayerRun& run, std::string_view dispatcher) {
  RoutingReport report = routing_report(tokens_per_expert(run.state().plan.counts()));
  int64_t total = std::accumulate(report.tokens_per_expert.begin(), report.tokens_per_expert.end(), int64_t{0});
  int64_t expected = call.run_case.ranks * call.run_case.tokens * call.run_case.layer.router.top_k;
  return call.add("routing", fmt::format("{}: distribution", dispatcher), total == expected, describe(report));
}

}  // namespace

Status verify_routing(VerifyCall& call) {
  PLAIT_ASSIGN_OR_RETURN(CaseInputs inputs, make_inputs(call.context, call.run_case, rank_tokens(call.run_case, call.group.rank())));
  PLAIT_ASSIGN_OR_RETURN(LayerRun run, LayerRun::create(call.context, call.group, call.run_case, std::move(inputs)));
  Decision baseline;
  for (Dispatcher dispatcher : call.dispatchers) {
    PLAIT_RETURN_IF_ERROR(call.step(run, dispatcher));
    int64_t bad = num_bad_entries(run);
    PLAIT_RETURN_IF_ERROR(call.add("routing", fmt::format("{}: ids and weights", name(dispatcher)), bad == 0,
                                   fmt::format("{} entries of the rank, {} wrong", run.state().ids.view.num_elements(), bad)));
    PLAIT_RETURN_IF_ERROR(add_distribution(call, run, name(dispatcher)));
    Decision own = decision(run);
    if (dispatcher == call.dispatchers[0]) {
      baseline = std::move(own);
      continue;
    }
    PLAIT_RETURN_IF_ERROR(call.add("routing", fmt::format("{} = {}: ids, weights, counts", name(dispatcher), name(call.dispatchers[0])),
                                   own == baseline, own == baseline ? "same bits" : "differs"));
  }
  return {};
}

}  // namespace plait::verify
