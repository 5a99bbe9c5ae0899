#include "cli/output.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/log.h"

namespace plait::cli {
namespace {

bool colours_on(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  bool refused = no_color != nullptr && *no_color != '\0';
  return !refused && ::isatty(fd) == 1;
}

bool is_smart_terminal(int fd) {
  const char* term = std::getenv("TERM");
  return ::isatty(fd) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

LogLevel log_level_of(std::string_view text) {
  if (text == "debug") return LogLevel::debug;
  if (text == "info") return LogLevel::info;
  return text == "error" ? LogLevel::error : LogLevel::warning;
}

std::string_view label(LogLevel level) {
  constexpr std::string_view labels[] = {"error", "warning", "info", "debug"};
  return labels[static_cast<int>(level)];
}

// One write for a whole line, so that the lines of several ranks do not mix.
void write_stderr(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

// A pipe or a device is written in place: renaming would replace it.
bool is_written_in_place(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
}

Status cannot_write(const std::string& path, int error) {
  return Status::invalid_argument(fmt::format("--json {}: cannot be written: {}", path, std::strerror(error)));
}

Status write_text(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return cannot_write(path, errno);
  bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  int error = errno;
  bool closed = std::fclose(file) == 0;
  return written && closed ? Status() : cannot_write(path, written ? errno : error);
}

}  // namespace

int terminal_columns(int fd, int otherwise) {
  winsize size{};
  bool known = ::isatty(fd) == 1 && ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : otherwise;
}

void print_result(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void print_error(std::string_view command, std::string_view text) {
  bool colour = colours_on(STDERR_FILENO);
  write_stderr(fmt::format("{}: {}error:{} {}\n", command, colour ? "\x1b[1;31m" : "", colour ? "\x1b[0m" : "", text));
}

void print_note(std::string_view command, std::string_view text) { write_stderr(fmt::format("{}: {}\n", command, text)); }

void send_log_to_stderr(std::string_view level, int rank) {
  std::string who = rank >= 0 ? fmt::format("plait[{}]", rank) : "plait";
  set_log_sink([who](LogLevel at, std::string_view text) { write_stderr(fmt::format("{}: {}: {}\n", who, label(at), text)); }, log_level_of(level));
}

Status check_json_path(const std::string& path) {
  if (path.empty() || path == "-") return {};
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return cannot_write(path, EISDIR);
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::string place = folder.empty() ? "." : folder.string();
  bool exists = ::access(path.c_str(), F_OK) == 0;
  if (exists && ::access(path.c_str(), W_OK) != 0) return cannot_write(path, errno);
  if (!is_written_in_place(path) && ::access(place.c_str(), W_OK | X_OK) != 0) return cannot_write(path, errno);
  return {};
}

Status write_json(const std::string& path, const nlohmann::ordered_json& json) {
  if (path.empty()) return {};
  std::string text = json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  if (path == "-") {
    print_result(text);
    return {};
  }
  if (is_written_in_place(path)) return write_text(path, text);
  std::string temporary = fmt::format("{}.{}.part", path, ::getpid());
  if (Status status = write_text(temporary, text); !status.ok()) {
    std::remove(temporary.c_str());
    return status;
  }
  if (std::rename(temporary.c_str(), path.c_str()) == 0) return {};
  int error = errno;
  std::remove(temporary.c_str());
  return cannot_write(path, error);
}

ProgressBar::ProgressBar(bool quiet) : enabled_(!quiet && is_smart_terminal(STDERR_FILENO)) {}

void ProgressBar::show(double done, std::string_view what) {
  auto now = std::chrono::steady_clock::now();
  if (!enabled_ || (drawn_ && now - last_ < std::chrono::milliseconds(100))) return;
  last_ = now;
  drawn_ = true;
  constexpr int fallback_columns = 80;
  write_stderr("\r\x1b[K" + progress_line(done, what, terminal_columns(STDERR_FILENO, fallback_columns) - 1));
}

void ProgressBar::clear() {
  if (drawn_) write_stderr("\r\x1b[K");
  drawn_ = false;
}

std::string progress_line(double done, std::string_view what, int columns) {
  done = std::clamp(done, 0.0, 1.0);
  int bar_columns = std::clamp(columns / 3, 0, 30);
  auto filled = static_cast<int>(done * bar_columns);
  std::string bar = bar_columns < 5 ? "" : fmt::format("[{:#<{}}{:.<{}}] ", "", filled, "", bar_columns - filled);
  std::string line = fmt::format("{}{:3.0f} %  {}", bar, 100 * done, what);
  return line.substr(0, static_cast<size_t>(std::max(columns, 0)));
}

}  // namespace plait::cli
