#include "moe/call.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "routing/fused_call.h"

namespace plait::moe {

Status stop_group(const LayerCall& call, std::string_view operation, Status status) {
  return plait::stop_group(call.group, operation, call.stage, call.unfinished, std::move(status));
}

CallSignature signature(const LayerCall& call, std::string_view operation) {
  const LayerConfig& config = call.config;
  CallSignature s;
  s.operation = operation;
  s.dispatcher = name(call.dispatcher);
  s.dtype = config.dtype;
  s.num_experts = config.router.num_experts;
  s.k = config.router.top_k;
  s.hidden = config.hidden;
  s.intermediate = config.intermediate;
  s.in_contract = config.in_contract();
  s.detail = fmt::format("activation {}{} limit {} alpha {}, expert bias {}, recompute {}, shared expert {}{}", name(config.activation.kind),
                         config.activation.interleaved ? " interleaved" : "", config.activation.limit, config.activation.alpha, config.expert_bias,
                         config.recompute, config.shared_intermediate, config.shared_gate ? " gated" : "");
  return s;
}

}  // namespace plait::moe
