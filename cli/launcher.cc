#include "cli/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "base/status_macros.h"
#include "cli/output.h"

extern char** environ;

namespace plait::cli {
namespace {

constexpr int exit_interrupted = 130;
constexpr int exit_rank_failed = 3;
constexpr int exit_bad_input = 2;

sigset_t watched_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&set, signal);
  return set;
}

std::vector<std::string> environment_for(int rank, int size, const std::string& job) {
  constexpr std::string_view set_here[] = {"PLAIT_RANK=", "PLAIT_SIZE=", "PLAIT_LOCAL_RANK=", "PLAIT_LOCAL_SIZE=", "PLAIT_JOB="};
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string_view text(*entry);
    bool replaced = std::any_of(std::begin(set_here), std::end(set_here), [&](std::string_view name) { return text.rfind(name, 0) == 0; });
    if (!replaced) result.emplace_back(text);
  }
  result.push_back(fmt::format("PLAIT_RANK={}", rank));
  result.push_back(fmt::format("PLAIT_SIZE={}", size));
  result.push_back("PLAIT_JOB=" + job);
  return result;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Between fork and exec: async-signal-safe calls only.
[[noreturn]] void become_rank(pid_t launcher, int rank, char* const* arguments, char* const* environment) {
  constexpr int exit_cannot_start = 127;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) ::_exit(exit_cannot_start);  // the launcher died before the line above
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGINT, SIG_DFL);  // a shell's background job inherits it ignored
  int null = ::open("/dev/null", O_RDWR);
  if (null >= 0) {
    ::dup2(null, STDIN_FILENO);
    if (rank != 0) ::dup2(null, STDOUT_FILENO);
    if (null > STDERR_FILENO) ::close(null);
  }
  ::execve("/proc/self/exe", arguments, environment);
  ::_exit(exit_cannot_start);
}

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  while (true) {
    ssize_t count = ::read(fd, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(buffer, static_cast<size_t>(count));
  }
}

}  // namespace

std::string unique_job_name() {
  std::random_device random;
  return fmt::format("plait-{}-{:08x}{:08x}", ::getpid(), random(), random());
}

Launcher::Launcher(LaunchOptions options) : options_(std::move(options)), children_(static_cast<size_t>(options_.num_ranks)) {}

Launcher::~Launcher() {
  signal_running(SIGKILL);
  for (Child& child : children_) {
    if (child.running) ::waitpid(child.pid, nullptr, 0);
    if (child.report_fd >= 0) ::close(child.report_fd);
  }
  if (signal_fd_ >= 0) ::close(signal_fd_);
}

int Launcher::run() {
  ::signal(SIGCHLD, SIG_DFL);  // a parent that ignores it would leave nothing to wait for
  sigset_t set = watched_signals(), before;
  ::sigprocmask(SIG_BLOCK, &set, &before);
  signal_fd_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  Status started = signal_fd_ >= 0 ? start_all() : Status::resource_exhausted(fmt::format("signalfd: {}", std::strerror(errno)));
  if (!started.ok()) {
    print_error(options_.command, started.to_string());
    return exit_code(started);
  }
  watch();
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  return finish();
}

Status Launcher::start_all() {
  std::string job = unique_job_name();
  for (int rank = 0; rank < options_.num_ranks; ++rank) {
    std::vector<std::string> environment = environment_for(rank, options_.num_ranks, job);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return Status::resource_exhausted(fmt::format("pipe for rank {}: {}", rank, std::strerror(errno)));
    std::vector<std::string> arguments = options_.arguments;
    arguments.push_back(fmt::format("--report-fd={}", ends[1]));
    std::vector<char*> argument_pointers = pointers_to(arguments), environment_pointers = pointers_to(environment);
    pid_t launcher = ::getpid();
    pid_t pid = ::fork();
    if (pid == 0) {
      ::fcntl(ends[1], F_SETFD, 0);
      become_rank(launcher, rank, argument_pointers.data(), environment_pointers.data());
    }
    int error = errno;
    ::close(ends[1]);
    if (pid < 0) {
      ::close(ends[0]);
      return Status::resource_exhausted(fmt::format("rank {} of {} could not be started: {}", rank, options_.num_ranks, std::strerror(error)));
    }
    children_[static_cast<size_t>(rank)] = {pid, ends[0], true, false};
  }
  return {};
}

void Launcher::watch() {
  while (any_running()) {
    pollfd waited{signal_fd_, POLLIN, 0};
    int ready = ::poll(&waited, 1, milliseconds_left());
    signalfd_siginfo info{};
    while (ready > 0 && ::read(signal_fd_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
      if (info.ssi_signo != SIGCHLD) on_signal(static_cast<int>(info.ssi_signo));
    }
    reap();
    if (deadline_ && milliseconds_left() == 0) kill_running();
  }
}

void Launcher::on_signal(int signal) {
  if (interrupted_) {
    kill_running();
    return;
  }
  interrupted_ = true;
  signal_running(signal);
  deadline_ = std::chrono::steady_clock::now() + options_.interrupt_grace;
}

void Launcher::reap() {
  for (int rank = 0; rank < options_.num_ranks; ++rank) {
    Child& child = children_[static_cast<size_t>(rank)];
    int wait_status = 0;
    if (child.running && ::waitpid(child.pid, &wait_status, WNOHANG) == child.pid) {
      child.running = false;
      on_end(rank, wait_status);
    }
  }
}

void Launcher::on_end(int rank, int wait_status) {
  Child& child = children_[static_cast<size_t>(rank)];
  RankFailure failure;
  failure.rank = rank;
  failure.signal = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
  failure.exit_code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 0;
  decode_failure(read_all(child.report_fd), failure);
  ::close(child.report_fd);
  child.report_fd = -1;
  if (rank == 0) exit_code_of_rank_0_ = failure.exit_code;
  bool checks_failed = rank == 0 && failure.exit_code == 1;
  bool failed = failure.signal != 0 ? !child.killed_here : failure.exit_code != 0 && !checks_failed;
  if (!failed || interrupted_) return;
  if (failure.exit_code == exit_interrupted) {
    on_signal(SIGTERM);
    return;
  }
  failures_.push_back(std::move(failure));
  stop_others_within(options_.failure_grace);
}

void Launcher::stop_others_within(std::chrono::milliseconds grace) {
  if (!deadline_) deadline_ = std::chrono::steady_clock::now() + grace;
}

void Launcher::signal_running(int signal) {
  for (const Child& child : children_) {
    if (child.running) ::kill(child.pid, signal);
  }
}

void Launcher::kill_running() {
  for (Child& child : children_) child.killed_here = child.killed_here || child.running;
  signal_running(SIGKILL);
  deadline_.reset();
}

bool Launcher::any_running() const {
  return std::any_of(children_.begin(), children_.end(), [](const Child& child) { return child.running; });
}

int Launcher::milliseconds_left() const {
  if (!deadline_) return -1;
  auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline_ - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::max<int64_t>(left, 0));
}

int Launcher::finish() const {
  if (interrupted_) {
    print_note(options_.command, "interrupted");
    return exit_interrupted;
  }
  if (failures_.empty()) return exit_code_of_rank_0_;
  print_error(options_.command, summary(failures_, options_.num_ranks));
  bool bad_input = static_cast<int>(failures_.size()) == options_.num_ranks &&
                   std::all_of(failures_.begin(), failures_.end(), [](const RankFailure& f) { return f.exit_code == exit_bad_input; });
  return bad_input ? exit_bad_input : exit_rank_failed;
}

}  // namespace plait::cli
