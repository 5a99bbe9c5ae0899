#include "cli/failure.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>

#include <algorithm>

namespace plait::cli {
namespace {

constexpr size_t max_text_bytes = 8192;  // fits a pipe's buffer, so that a dying rank never waits for a reader
constexpr std::string_view magic = "plait-failure ";

// 0 = knows best what happened.
int explanatory_rank(const RankFailure& failure) {
  if (failure.signal != 0) return 0;
  switch (failure.code) {
    case StatusCode::aborted:
      return 4;
    case StatusCode::peer_lost:
      return 3;
    case StatusCode::timeout:
      return 2;
    default:
      return failure.text.empty() ? 3 : 1;
  }
}

std::string describe_kill(const RankFailure& failure) {
  std::string hint;
  if (failure.signal == SIGKILL) hint = "\n  If nobody sent it, the system ran out of memory: try fewer ranks, fewer tokens or a smaller --scale.";
  return fmt::format("was killed by {}{}", signal_name(failure.signal), hint);
}

}  // namespace

std::string encode_failure(const Status& status) {
  return fmt::format("{}{}\n{}", magic, static_cast<int>(status.code()), status.to_string().substr(0, max_text_bytes));
}

bool decode_failure(std::string_view encoded, RankFailure& to) {
  size_t line_end = encoded.find('\n');
  if (encoded.substr(0, magic.size()) != magic || line_end == std::string_view::npos) return false;
  int code = 0;
  for (char c : encoded.substr(magic.size(), line_end - magic.size())) code = code * 10 + (c - '0');
  to.code = static_cast<StatusCode>(code);
  to.text = encoded.substr(line_end + 1);
  return true;
}

size_t first_cause(const std::vector<RankFailure>& failures) {
  auto best = std::min_element(failures.begin(), failures.end(),
                               [](const RankFailure& a, const RankFailure& b) { return explanatory_rank(a) < explanatory_rank(b); });
  return static_cast<size_t>(best - failures.begin());
}

std::string summary(const std::vector<RankFailure>& failures, int num_ranks) {
  const RankFailure& cause = failures[first_cause(failures)];
  bool all_alike = static_cast<int>(failures.size()) == num_ranks && !cause.text.empty() &&
                   std::all_of(failures.begin(), failures.end(), [&](const RankFailure& f) { return f.text == cause.text; });
  if (all_alike) return cause.text;
  std::string text = fmt::format("rank {} of {} ", cause.rank, num_ranks);
  if (cause.signal != 0) {
    text += describe_kill(cause);
  } else if (cause.text.empty()) {
    text += fmt::format("ended with exit code {} and no message", cause.exit_code);
  } else {
    text += "failed: " + cause.text;
  }
  if (num_ranks > 1) text += "\n  The other ranks were stopped.";
  return text;
}

std::string signal_name(int signal) {
  const char* abbreviation = ::sigabbrev_np(signal);
  return abbreviation != nullptr ? fmt::format("signal {} (SIG{})", signal, abbreviation) : fmt::format("signal {}", signal);
}

}  // namespace plait::cli
