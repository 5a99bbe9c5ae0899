#include "moe/announce.h"

#include <vector>

namespace plait::moe {

Result<CountsMatrix> announce_forward(LayerCall& call, std::span<const int64_t> local_counts, std::span<const Region> publish,
                                      PublishedViews& views) {
  StageScope scope(call, Stage::exchange_counts);
  return exchange_counts(call.group, call.placement(), signature(call, "moe_forward"), local_counts, {}, publish, &views);
}

Status announce_backward(LayerCall& call, const RoutingPlan& plan, std::span<const Region> publish, PublishedViews& views) {
  StageScope scope(call, Stage::exchange_counts);
  const ExpertPlacement place = plan.placement();
  std::vector<int64_t> send, recv;
  for (int64_t expert = 0; expert < place.num_experts; ++expert) send.push_back(plan.counts().at(plan.rank(), expert));
  for (int source = 0; source < place.num_ranks; ++source) {
    for (int64_t j = 0; j < place.experts_per_rank(); ++j) recv.push_back(plan.counts().at(source, place.global(plan.rank(), j)));
  }
  return exchange_counts(call.group, call.placement(), signature(call, "moe_backward"), send, recv, publish, &views).status();
}

}  // namespace plait::moe
