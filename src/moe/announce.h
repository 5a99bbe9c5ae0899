#pragma once
/// The exchange of counts that opens both directions of a layer call.

#include <cstdint>
#include <span>
#include <string_view>

#include "moe/call.h"

namespace plait::moe {

/// Forward: this rank's entries per expert (E) become those of all ranks; regions are published with them.
Result<CountsMatrix> announce_forward(LayerCall& call, std::span<const int64_t> local_counts, std::span<const Region> publish, PublishedViews& views);

/// Backward: the same counts as in forward, so that ranks which enter the backward of different calls are told so.
Status announce_backward(LayerCall& call, const RoutingPlan& plan, std::span<const Region> publish, PublishedViews& views);

}  // namespace plait::moe
