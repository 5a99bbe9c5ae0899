#include <algorithm>
#include <cstring>
#include <memory>

#include "base/status_macros.h"
#include "observe/verify_call.h"

namespace plait::verify {
namespace {

/// A distribution with an expert of one row, experts of all rows and, where E > k, empty ones: every token takes the last k experts, but
/// the first token of all has the expert before them in its last slot. With E = k every slot takes expert 0: legal, and the others are empty.
void unbalanced_ids(int64_t num_experts, int64_t first_token, const TensorView& ids) {
  int64_t k = ids.shape[1];
  for (int64_t i = 0; i < ids.num_elements(); ++i) {
    int64_t slot = i % k, expert = num_experts > k ? num_experts - 1 - slot : 0;
    if (num_experts > k && first_token + i / k == 0 && slot == k - 1) --expert;
    ids.as<int32_t>()[i] = static_cast<int32_t>(expert);
  }
}

/// Blocks of experts without rows are +0 to the bit.
bool empty_blocks_are_zero(const LayerRun& run, const NamedResult& result) {
  std::span<const int64_t> rows = run.state().plan.expert_rows();
  int64_t block_bytes = result.view.num_bytes() / static_cast<int64_t>(rows.size());
  for (size_t j = 0; j < rows.size(); ++j) {
    const std::byte* block = result.view.data + static_cast<int64_t>(j) * block_bytes;
    if (rows[j] == 0 && std::any_of(block, block + block_bytes, [](std::byte b) { return b != std::byte{0}; })) return false;
  }
  return true;
}

Status check_unbalanced(VerifyCall& call, LayerRun& run, int64_t first_token) {
  int64_t tokens = run.inputs().x.view.shape[0], k = run.config().router.top_k;
  PLAIT_ASSIGN_OR_RETURN(Tensor ids, call.context.empty(DType::i32, {tokens, k}));
  PLAIT_ASSIGN_OR_RETURN(Tensor weights, call.context.empty(DType::f32, {tokens, k}));
  unbalanced_ids(run.config().router.num_experts, first_token, ids);
  random_weights(call.run_case.seed, first_token, weights);
  run.set_routing({ids, weights});
  ResultCopies baseline;
  for (size_t d = 0; d < call.dispatchers.size(); ++d) {
    PLAIT_RETURN_IF_ERROR(call.step(run, call.dispatchers[d]));
    std::vector<NamedResult> results = run.results(true);
    bool zero = true;
    for (const NamedResult& result : results) {
      if (result.name == "dw_gate_up" || result.name == "dw_down") zero = zero && empty_blocks_are_zero(run, result);
    }
    std::string_view dispatcher = name(call.dispatchers[d]);
    std::span<const int64_t> rows = run.state().plan.expert_rows();
    PLAIT_RETURN_IF_ERROR(call.add(
        "backward", fmt::format("{}: dW of empty experts", dispatcher), zero,
        fmt::format("{}: {} of {} experts of the rank are empty", zero ? "+0" : "not +0", std::count(rows.begin(), rows.end(), 0), rows.size())));
    if (d == 0) baseline = ResultCopies(results);
    for (size_t i = 0; i < results.size() && d > 0; ++i) {
      std::string line = fmt::format("{} = {}: {}, 1 and all rows", dispatcher, name(call.dispatchers[0]), results[i].name);
      PLAIT_RETURN_IF_ERROR(add_comparison(call, "backward", std::move(line), run, first_token, results[i], baseline.items()[i]));
    }
  }
  return {};
}

/// A router that cannot tell experts apart: every token must choose 0 .. k-1.
Status check_ties(VerifyCall& call, LayerRun& run) {
  run.set_routing({});
  for (train::Stream id : {train::Stream::router, train::Stream::router_bias, train::Stream::choice_bias}) {
    TensorView value = run.parameters().set().value(id);
    if (value.defined()) std::memset(value.data, 0, static_cast<size_t>(value.num_bytes()));
  }
  for (Dispatcher dispatcher : call.dispatchers) {
    PLAIT_RETURN_IF_ERROR(call.step(run, dispatcher));
    const Tensor& ids = run.state().ids;
    int64_t k = ids.view.shape[1], wrong = 0;
    for (int64_t i = 0; i < ids.view.num_elements(); ++i) wrong += ids.as<int32_t>()[i] == i % k ? 0 : 1;
    PLAIT_RETURN_IF_ERROR(call.add("backward", fmt::format("{}: all scores tie", name(dispatcher)), wrong == 0,
                                   wrong == 0 ? fmt::format("every token has experts 0..{}", k - 1) : fmt::format("{} entries differ", wrong)));
  }
  return {};
}

}  // namespace

Status verify_backward(VerifyCall& call) {
  TokenRange range = rank_tokens(call.run_case, call.group.rank());
  PLAIT_ASSIGN_OR_RETURN(CaseInputs inputs, make_inputs(call.context, call.run_case, range));
  PLAIT_ASSIGN_OR_RETURN(LayerRun run, LayerRun::create(call.context, call.group, call.run_case, std::move(inputs)));
  PLAIT_RETURN_IF_ERROR(check_unbalanced(call, run, range.first));
  return check_ties(call, run);
}

}  // namespace plait::verify
