#pragma once
/// What a failed collective call says beyond the group's error: in its message, and in the file that PLAIT_DUMP names.

#include <cstdint>
#include <string>
#include <string_view>

#include "plait/group.h"
#include "plait/routing.h"
#include "plait/status.h"

namespace plait {

/// The error with "; note" behind its message and with the expert, unless it names one already or `expert` is negative.
Status concerning(const Status& error, std::string_view note, int64_t expert);

/// For an error in the wait for all of a rank's rows: how many of this rank's rows wait for it, and for which expert first.
Status without_rows(const RoutingPlan& plan, const Status& error);

/// For an error in the wait for results: with how many of this rank's entries went to experts of the rank concerned.
Status without_results(const RoutingPlan& plan, const Status& error);

/// For the dump: the ranks that have not raised results_there as often as this rank has.
std::string describe_missing_results(const Group& group);

/// Appends to the file that PLAIT_DUMP names where this rank was when a call failed: a line with the rank, `operation` and the error, then
/// the lines of `tiles` (TileScheduler::describe_unfinished()), indented. One write, so that lines of several ranks do not mix. Without the
/// variable nothing is written; a file that cannot be written is logged, and the error stays what it is.
void dump_state(const Group& group, std::string_view operation, const Status& error, std::string_view tiles);

}  // namespace plait
