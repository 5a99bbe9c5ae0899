#pragma once
/// Where text goes: results to stdout, progress and logs to stderr, JSON to files that appear whole or not at all.

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "plait/status.h"

namespace plait::cli {

/// Columns of the terminal behind a file descriptor; `otherwise` for pipes and files.
int terminal_columns(int fd, int otherwise);

void print_result(std::string_view text);
/// "plait run: error: ..." on stderr, "error" in red on a terminal unless NO_COLOR is set.
void print_error(std::string_view command, std::string_view text);
void print_note(std::string_view command, std::string_view text);

/// Log messages on stderr up to the level of PLAIT_LOG, each with the rank where `rank` >= 0.
void send_log_to_stderr(std::string_view level, int rank);

/// Says before any work whether the file could be written later. "-" is stdout.
Status check_json_path(const std::string& path);
/// Writes a temporary file beside `path` and renames it, so that no half-written file is ever seen. "" does nothing.
Status write_json(const std::string& path, const nlohmann::ordered_json& json);

/// One line on stderr that is drawn over again; nothing where stderr is no terminal or `quiet`.
class ProgressBar {
 public:
  explicit ProgressBar(bool quiet);
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(double done, std::string_view what);  ///< share in [0,1]; draws at most 10 times a second
  void clear();

 private:
  bool enabled_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_{};
};
/// The line itself, at most `columns` wide.
std::string progress_line(double done, std::string_view what, int columns);

}  // namespace plait::cli
