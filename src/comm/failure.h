#pragma once
/// The first error of a group, kept in its control block so that all ranks return the same one.

#include "comm/control.h"
#include "plait/status.h"

namespace plait::comm {

inline bool failed(const Control& control) { return control.head().failure.state.load(std::memory_order_acquire) != 0; }

/// Records `why` unless an error is recorded already; wakes everybody. `rank` is the caller.
void record_failure(const Control& control, int rank, const Status& why);

/// The recorded error; ok where there is none. Waits a moment for a rank that is still writing it; if that rank died in the middle, the
/// error says so.
Status read_failure(const Control& control);

}  // namespace plait::comm
