#include <fmt/format.h>

#include "plait/routing.h"

namespace plait {

Status ExpertPlacement::validate() const {
  if (num_experts < 1 || num_ranks < 1) {
    return Status::invalid_argument(fmt::format("{} experts on {} ranks: both must be at least 1", num_experts, num_ranks));
  }
  if (num_experts % num_ranks != 0) {
    return Status::invalid_argument(
        fmt::format("{0} experts do not divide evenly over {1} ranks ({0} % {1} = {2}): every rank holds equally many experts; choose a number of "
                    "ranks that divides {0}",
                    num_experts, num_ranks, num_experts % num_ranks));
  }
  return {};
}

}  // namespace plait
