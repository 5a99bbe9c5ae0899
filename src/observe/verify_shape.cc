#include <cmath>
#include <cstring>

#include "base/status_macros.h"
#include "observe/measure_gather.h"
#include "observe/routing_report.h"
#include "observe/verify_call.h"

namespace plait::verify {
namespace {

/// Rows that leave and rows that arrive, over all ranks, against tokens * k.
Status check_row_counts(VerifyCall& call, const LayerRun& run, int64_t num_tokens, Dispatcher dispatcher) {
  int64_t own[2] = {run.state().plan.num_send_rows(), run.state().plan.num_recv_rows()}, sent = 0, received = 0;
  PLAIT_ASSIGN_OR_RETURN(std::vector<int64_t> all, gather<int64_t>(call.group, "verification", own));
  for (size_t i = 0; i < all.size(); i += 2) {
    sent += all[i];
    received += all[i + 1];
  }
  int64_t expected = num_tokens * call.run_case.layer.router.top_k;
  return call.add(
      "shape", fmt::format("{}: rows", name(dispatcher)), sent == expected && received == expected,
      fmt::format("{} sent, {} received, {} tokens x top {} = {}", sent, received, num_tokens, call.run_case.layer.router.top_k, expected));
}

Status check_finite(VerifyCall& call, const LayerRun& run, Dispatcher dispatcher) {
  std::string bad;
  std::vector<NamedResult> results = run.results(true);
  for (const NamedResult& result : results) {
    if (!all_finite(result.view)) bad += fmt::format(" {}", result.name);
  }
  std::string detail = bad.empty() ? fmt::format("{} results, all elements finite", results.size()) : "not finite:" + bad;
  return call.add("shape", fmt::format("{}: results", name(dispatcher)), bad.empty(), detail);
}

/// Another number of tokens on every rank, none on the last of several: as many as the case has or fewer.
TokenRange uneven_tokens(const Case& run_case, int rank) {
  auto count = [&](int r) {
    if (run_case.ranks > 1 && r == run_case.ranks - 1) return int64_t{0};
    return run_case.tokens * (r + 1) / run_case.ranks;
  };
  TokenRange range{0, count(rank)};
  for (int r = 0; r < rank; ++r) range.first += count(r);
  return range;
}

Status check_uneven(VerifyCall& call) {
  TokenRange range = uneven_tokens(call.run_case, call.group.rank());
  PLAIT_ASSIGN_OR_RETURN(CaseInputs inputs, make_inputs(call.context, call.run_case, range));
  PLAIT_ASSIGN_OR_RETURN(LayerRun run, LayerRun::create(call.context, call.group, call.run_case, std::move(inputs)));
  ResultCopies baseline;
  for (size_t d = 0; d < call.dispatchers.size(); ++d) {
    PLAIT_RETURN_IF_ERROR(call.step(run, call.dispatchers[d]));
    std::vector<NamedResult> results = run.results(true);
    if (d == 0) baseline = ResultCopies(results);
    bool equal = true;
    for (size_t i = 0; i < results.size(); ++i) equal = equal && compare_bits(results[i].view, baseline.items()[i].view).equal;
    std::string line = fmt::format("{}: unequal tokens per rank", name(call.dispatchers[d]));
    std::string detail = d == 0 ? "runs" : fmt::format("{} {}", equal ? "same bits as" : "differs from", name(call.dispatchers[0]));
    PLAIT_RETURN_IF_ERROR(call.add("shape", std::move(line), equal, std::move(detail)));
  }
  return {};
}

Status check_no_tokens(VerifyCall& call) {
  PLAIT_ASSIGN_OR_RETURN(CaseInputs inputs, make_inputs(call.context, call.run_case, {0, 0}));
  PLAIT_ASSIGN_OR_RETURN(LayerRun run, LayerRun::create(call.context, call.group, call.run_case, std::move(inputs)));
  for (Dispatcher dispatcher : call.dispatchers) {
    PLAIT_RETURN_IF_ERROR(call.step(run, dispatcher));
    bool zero = true;
    for (const NamedResult& result : run.results(true)) {
      for (int64_t i = 0; i < result.view.num_bytes(); ++i) zero = zero && result.view.data[i] == std::byte{0};
    }
    PLAIT_RETURN_IF_ERROR(call.add("shape", fmt::format("{}: no tokens at all", name(dispatcher)), zero, zero ? "gradients are zero" : "not zero"));
  }
  return {};
}

}  // namespace

bool all_finite(const ConstTensorView& view) {
  for (int64_t i = 0; i < view.num_elements(); ++i) {
    if (!std::isfinite(element(view, i))) return false;
  }
  return true;
}

Status verify_shape(VerifyCall& call) {
  const Case& run_case = call.run_case;
  PLAIT_ASSIGN_OR_RETURN(CaseInputs inputs, make_inputs(call.context, run_case, rank_tokens(run_case, call.group.rank())));
  PLAIT_ASSIGN_OR_RETURN(LayerRun run, LayerRun::create(call.context, call.group, run_case, std::move(inputs)));
  for (Dispatcher dispatcher : call.dispatchers) {
    PLAIT_RETURN_IF_ERROR(call.step(run, dispatcher));
    PLAIT_RETURN_IF_ERROR(check_row_counts(call, run, run_case.ranks * run_case.tokens, dispatcher));
    PLAIT_RETURN_IF_ERROR(check_finite(call, run, dispatcher));
  }
  PLAIT_RETURN_IF_ERROR(check_uneven(call));
  return check_no_tokens(call);
}

}  // namespace plait::verify
