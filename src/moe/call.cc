#include "moe/call.h"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace plait::moe {

Status stop_group(const LayerCall& call, Status status) {
  if (status.rank() < 0) status = Status(std::move(status).at_rank(call.group.rank()));
  if (status.stage().empty()) status = Status(std::move(status).in_stage(name(call.stage)));
  call.group.abort(status);
  return status;
}

CallSignature signature(const LayerCall& call, std::string_view operation) {
  const LayerConfig& config = call.config;
  CallSignature s;
  s.operation = operation;
  s.dispatcher = name(config.dispatcher);
  s.dtype = config.dtype;
  s.num_experts = config.router.num_experts;
  s.k = config.router.top_k;
  s.hidden = config.hidden;
  s.intermediate = config.intermediate;
  s.detail = fmt::format("activation {}{} limit {} alpha {}, expert bias {}, recompute {}, shared expert {}{}", name(config.activation.kind),
                         config.activation.interleaved ? " interleaved" : "", config.activation.limit, config.activation.alpha, config.expert_bias,
                         config.recompute, config.shared_intermediate, config.shared_gate ? " gated" : "");
  return s;
}

}  // namespace plait::moe
