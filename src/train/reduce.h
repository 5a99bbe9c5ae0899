#pragma once
/// Sums over the ranks whose bits depend on the values and the rank order alone.

#include <span>
#include <string_view>

#include "plait/context.h"
#include "plait/group.h"
#include "plait/status.h"

namespace plait::train {

/// Every rank's `values` become ((v_0 + v_1) + v_2) + ... in float32, element by element, on all ranks. Collective; the length must be
/// equal on all ranks. A rank sums its part of each slice and the others fetch it, so that the window need stays at
/// min(length, slice) * 8 bytes and every value crosses twice whatever R.
Status all_reduce_in_rank_order(const Context& context, Group& group, std::span<float> values, std::string_view stage);

/// Values of one slice of the reduction: 4 MiB.
inline constexpr int64_t reduce_slice = int64_t{1} << 20;

}  // namespace plait::train
