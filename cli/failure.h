#pragma once
/// What a rank that failed tells, how it reaches the launcher, and which of many failures was the first cause.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plait/status.h"

namespace plait::cli {

struct RankFailure {
  int rank = -1;
  int signal = 0;  ///< the signal that killed the rank, or 0
  StatusCode code = StatusCode::internal;
  std::string text;  ///< Status::to_string(), "" where the rank left without a word
  int exit_code = 0;
};

/// One message through a pipe: the code, and the text behind it.
std::string encode_failure(const Status& status);
/// Reads it back into `to`. False for an empty or foreign text.
bool decode_failure(std::string_view encoded, RankFailure& to);

/// Index of the failure that explains the others: a rank that was killed, else one with an error of its own, else the first to arrive
/// (`failures` come in order of arrival). A rank that only says "aborted" or "peer lost" repeats what happened elsewhere.
size_t first_cause(const std::vector<RankFailure>& failures);

/// "rank 2 of 4 was killed by signal 9 (SIGKILL)\n  ...": what the launcher prints for the failures, once.
std::string summary(const std::vector<RankFailure>& failures, int num_ranks);

/// "SIGKILL", or "signal 64" where it has no name.
std::string signal_name(int signal);

}  // namespace plait::cli
