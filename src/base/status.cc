#include "plait/status.h"

#include <fmt/format.h>

namespace plait {

std::string_view name(StatusCode code) {
  switch (code) {
    case StatusCode::ok:
      return "ok";
    case StatusCode::invalid_argument:
      return "invalid argument";
    case StatusCode::resource_exhausted:
      return "resource exhausted";
    case StatusCode::timeout:
      return "timeout";
    case StatusCode::peer_lost:
      return "peer lost";
    case StatusCode::aborted:
      return "aborted";
    case StatusCode::unavailable:
      return "unavailable";
    case StatusCode::interrupted:
      return "interrupted";
    case StatusCode::internal:
      return "internal error";
  }
  return "unknown";
}

std::string Status::to_string() const {
  std::string text(name(code_));
  if (!message_.empty()) text += ": " + message_;
  std::string where;
  auto add = [&where](const std::string& part) { where += (where.empty() ? "" : ", ") + part; };
  if (rank_ >= 0) add(fmt::format("rank {}", rank_));
  if (!stage_.empty()) add("stage " + stage_);
  if (expert_ >= 0) add(fmt::format("expert {}", expert_));
  if (!where.empty()) text += " (" + where + ")";
  return text;
}

int exit_code(const Status& status) {
  switch (status.code()) {
    case StatusCode::ok:
      return 0;
    case StatusCode::invalid_argument:
    case StatusCode::unavailable:
      return 2;
    case StatusCode::interrupted:
      return 130;
    default:
      return 3;
  }
}

}  // namespace plait
