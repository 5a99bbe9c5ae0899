#include <utility>

#include "plait/routing.h"

namespace plait {

RoutingPlan::RoutingPlan(CountsMatrix counts, int rank) : counts_(std::move(counts)), rank_(rank) {
  const ExpertPlacement& place = placement();
  const int64_t num_experts = place.num_experts, experts_per_rank = place.experts_per_rank();
  send_begin_.reserve(static_cast<size_t>(place.num_ranks * (num_experts + 1)));
  for (int source = 0; source < place.num_ranks; ++source) {
    int64_t begin = 0;
    for (int64_t expert = 0; expert < num_experts; ++expert) {
      send_begin_.push_back(begin);
      begin += counts_.at(source, expert);
    }
    send_begin_.push_back(begin);
  }
  recv_begin_.reserve(static_cast<size_t>(num_experts * place.num_ranks));
  for (int owner = 0; owner < place.num_ranks; ++owner) {
    int64_t begin = 0;
    for (int64_t j = 0; j < experts_per_rank; ++j) {
      const int64_t expert_begin = begin;
      for (int source = 0; source < place.num_ranks; ++source) {
        recv_begin_.push_back(begin);
        begin += counts_.at(source, place.global(owner, j));
      }
      if (owner == rank_) expert_rows_.push_back(begin - expert_begin);
    }
    recv_rows_.push_back(begin);
  }
}

}  // namespace plait
