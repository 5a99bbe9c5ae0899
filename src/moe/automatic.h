#pragma once
/// Dispatcher auto: resolved to one of the others before a forward call, alike on all ranks.

#include <cstdint>
#include <string>

#include "moe/call.h"
#include "moe/dispatch_history.h"

namespace plait::moe {

/// The dispatcher of a forward call and why, from the configuration alone or, for auto, from what the group knows.
DispatchChoice choose_dispatcher(const LayerCall& call);

/// Before an exchange of counts: what this rank tells the others about its last call. After it: what they told is recorded, and the kind
/// of call that the counts show is kept in `call.kind` (forward).
void tell_times(const LayerCall& call, CallSignature& signature);
void take_times(LayerCall& call, const CountsMatrix& counts);

/// A direction of a call took so long on this rank.
void note_time(const LayerCall& call, bool backward, int64_t ns);

}  // namespace plait::moe
