#pragma once
/// The layer as docs/numerics.md sections 1 to 5 define it, bit for bit, in plain scalar loops over the whole batch in one process. It
/// shares nothing with the layer but the router (an operator with tests of its own), exp, and the rarer activations' row functions.

#include <vector>

#include "support/layer_case.h"

namespace plait::test {

/// What every rank must get, to the bit, in rank order.
std::vector<RankResult> exact_layer(const LayerInputs& inputs, const TokenSplit& split, const RankRunOptions& options = {});

}  // namespace plait::test
