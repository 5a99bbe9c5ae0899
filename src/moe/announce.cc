#include "moe/announce.h"

#include <vector>

#include "base/status_macros.h"
#include "moe/automatic.h"

namespace plait::moe {

Result<CountsMatrix> announce_forward(LayerCall& call, std::span<const int64_t> local_counts, std::span<const Region> publish,
                                      PublishedViews& views) {
  StageScope scope(call, Stage::exchange_counts);
  CallSignature own = signature(call, "moe_forward");
  tell_times(call, own);
  PLAIT_ASSIGN_OR_RETURN(CountsMatrix counts, exchange_counts(call.group, call.placement(), own, local_counts, {}, publish, &views));
  take_times(call, counts);
  return counts;
}

Status announce_backward(LayerCall& call, const RoutingPlan& plan, std::span<const Region> publish, PublishedViews& views) {
  StageScope scope(call, Stage::exchange_counts);
  const ExpertPlacement place = plan.placement();
  std::vector<int64_t> send, recv;
  for (int64_t expert = 0; expert < place.num_experts; ++expert) send.push_back(plan.counts().at(plan.rank(), expert));
  for (int source = 0; source < place.num_ranks; ++source) {
    for (int64_t j = 0; j < place.experts_per_rank(); ++j) recv.push_back(plan.counts().at(source, place.global(plan.rank(), j)));
  }
  CallSignature own = signature(call, "moe_backward");
  tell_times(call, own);
  PLAIT_ASSIGN_OR_RETURN(const CountsMatrix counts, exchange_counts(call.group, call.placement(), own, send, recv, publish, &views));
  take_times(call, counts);
  return {};
}

}  // namespace plait::moe
