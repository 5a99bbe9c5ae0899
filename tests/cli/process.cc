#include "cli/process.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

extern char** environ;

namespace plait::test {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::string> environment_with(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string text(*entry);
    std::string name = text.substr(0, text.find('='));
    if (changes.count(name) == 0) result.push_back(text);
  }
  for (const auto& [name, value] : changes) {
    if (!value.empty()) result.push_back(name + "=" + value);
  }
  return result;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::string proc_text(pid_t pid, const std::string& name) { return read_file("/proc/" + std::to_string(pid) + "/" + name); }

// The fields of /proc/PID/stat behind the name in parentheses: state first.
std::vector<std::string> stat_fields(pid_t pid) {
  std::string text = proc_text(pid, "stat");
  std::istringstream in(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::vector<std::string> fields;
  for (std::string field; in >> field;) fields.push_back(field);
  return fields;
}

// Clock ticks that a process has computed.
long used_ticks(pid_t pid) {
  constexpr size_t utime = 11;  // of stat_fields
  std::vector<std::string> fields = stat_fields(pid);
  return fields.size() > utime ? std::stol(fields[utime]) : 0;
}

// True once the process has a handler for the signal.
bool catches(pid_t pid, int signal) {
  const std::string key = "SigCgt:\t";
  std::string status = proc_text(pid, "status");
  size_t at = status.find(key);
  return at != std::string::npos && ((std::stoull(status.substr(at + key.size(), 16), nullptr, 16) >> (signal - 1)) & 1U) != 0;
}

// Reads both until both have ended or the time is over. True where they ended.
bool drain(int out, int err, RunResult& result, Clock::time_point end) {
  pollfd waited[2] = {{out, POLLIN, 0}, {err, POLLIN, 0}};
  std::string* texts[2] = {&result.out, &result.err};
  while (waited[0].fd >= 0 || waited[1].fd >= 0) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0 || ::poll(waited, 2, static_cast<int>(left)) <= 0) return false;
    for (int i = 0; i < 2; ++i) {
      if (waited[i].fd < 0 || waited[i].revents == 0) continue;
      char buffer[4096];
      ssize_t count = ::read(waited[i].fd, buffer, sizeof(buffer));
      if (count > 0) {
        texts[i]->append(buffer, static_cast<size_t>(count));
      } else {
        waited[i].fd = -1;
      }
    }
  }
  return true;
}

}  // namespace

bool holds_within(double limit_s, const std::function<bool()>& condition) {
  auto end = Clock::now() + std::chrono::duration<double>(limit_s);
  while (!condition()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

Process::Process(const std::vector<std::string>& command, const RunSettings& settings) {
  std::vector<std::string> arguments = command, environment = environment_with(settings.environment);
  std::vector<char*> argument_pointers = pointers_to(arguments), environment_pointers = pointers_to(environment);
  int out[2] = {-1, -1}, err[2] = {-1, -1};
  if (settings.terminal) {
    winsize size{};
    size.ws_col = static_cast<unsigned short>(settings.columns);
    size.ws_row = 24;
    if (::openpty(&out[0], &out[1], nullptr, nullptr, &size) != 0) return;
    ::fcntl(out[0], F_SETFD, FD_CLOEXEC);
    err[1] = out[1];
  } else if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) {
    return;
  }
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err[1], STDERR_FILENO);
    if (settings.terminal) ::close(out[1]);
    if (!settings.folder.empty() && ::chdir(settings.folder.c_str()) != 0) ::_exit(126);
    ::execvpe(argument_pointers[0], argument_pointers.data(), environment_pointers.data());
    ::_exit(127);
  }
  ::close(out[1]);
  if (!settings.terminal) ::close(err[1]);
  out_ = out[0];
  err_ = err[0];
}

Process::~Process() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (out_ >= 0) ::close(out_);
  if (err_ >= 0) ::close(err_);
}

void Process::signal(int number) const {
  if (pid_ > 0) ::kill(pid_, number);
}

RunResult Process::wait(double limit_s) {
  RunResult result;
  auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit_s));
  bool ended = drain(out_, err_, result, end);
  if (!ended) ::kill(pid_, SIGKILL);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  if (ended) result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

std::vector<pid_t> Process::children() const {
  std::vector<pid_t> result;
  std::string pid = std::to_string(pid_);
  std::istringstream in(proc_text(pid_, "task/" + pid + "/children"));
  for (pid_t child; in >> child;) result.push_back(child);
  return result;
}

std::vector<pid_t> Process::busy_children(size_t count, double limit_s) const {
  auto busy = [](pid_t child) {
    constexpr long some_ticks = 10;  // 0.1 s of computing
    return used_ticks(child) >= some_ticks && catches(child, SIGINT);
  };
  std::vector<pid_t> found;
  holds_within(limit_s, [&] {
    found = children();
    return found.size() == count && std::all_of(found.begin(), found.end(), busy);
  });
  return found;
}

std::string program() { return std::string(PLAIT_BINARY_DIR) + "/plait"; }

RunResult run_plait(std::vector<std::string> arguments, const RunSettings& settings) {
  arguments.insert(arguments.begin(), program());
  return Process(arguments, settings).wait();
}

bool stops_within(pid_t pid, double limit_s) {
  ::kill(pid, SIGSTOP);
  return holds_within(limit_s, [pid] {
    std::vector<std::string> fields = stat_fields(pid);
    return !fields.empty() && fields[0] == "T";
  });
}

bool gone_within(pid_t pid, double limit_s) {
  return holds_within(limit_s, [pid] {
    std::vector<std::string> fields = stat_fields(pid);
    return fields.empty() || fields[0] == "Z" || fields[0] == "X";
  });
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "plait_cli_XXXXXX").string();
  path_ = ::mkdtemp(pattern.data());
}

TemporaryFolder::~TemporaryFolder() { std::filesystem::remove_all(path_); }

std::vector<std::string> TemporaryFolder::names() const {
  std::vector<std::string> result;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) result.push_back(entry.path().filename().string());
  std::sort(result.begin(), result.end());
  return result;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

}  // namespace plait::test
