#include "support/processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <ctime>
#include <sstream>

#include "plait/counters.h"

namespace plait::test {
namespace {

/// A status as text for the pipe: numbers, then the stage and the message on lines of their own.
std::string pack(const Status& status) {
  return fmt::format("{} {} {}\n{}\n{}", static_cast<int>(status.code()), status.rank(), status.expert(), status.stage(), status.message());
}

Status unpack(const std::string& text) {
  std::istringstream in(text);
  int code = 0;
  int rank = -1;
  int expert = -1;
  std::string stage;
  in >> code >> rank >> expert;
  in.ignore(1);
  std::getline(in, stage);
  const std::string message(std::istreambuf_iterator<char>(in), {});
  if (code == 0) return {};
  return Status(static_cast<StatusCode>(code), message).at_rank(rank).at_expert(expert).in_stage(stage);
}

[[noreturn]] void run_child(int pipe, const Processes::Body& body, int index) {
  std::string text;
  try {
    text = pack(body(index));
  } catch (const std::exception& error) {
    text = pack(Status::internal(error.what()));
  }
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(pipe, text.data() + done, text.size() - done);
    if (written <= 0) _exit(98);
    done += static_cast<size_t>(written);
  }
  _exit(0);
}

}  // namespace

std::string Outcome::to_string() const {
  if (timed_out) return "timed out";
  if (signal != 0) return fmt::format("signal {}", signal);
  if (!exited) return "ended without a result";
  return status.ok() ? "ok" : status.to_string();
}

Processes::Processes(int size, const Body& body) : children_(static_cast<size_t>(size)) {
  for (int index = 0; index < size; ++index) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) return;
    const pid_t pid = fork();
    if (pid == 0) {
      close(ends[0]);
      for (const Child& other : children_) {
        if (other.pipe >= 0) close(other.pipe);
      }
      run_child(ends[1], body, index);
    }
    close(ends[1]);
    children_[static_cast<size_t>(index)].pid = pid;
    children_[static_cast<size_t>(index)].pipe = ends[0];
  }
}

Processes::~Processes() {
  for (Child& child : children_) {
    if (!child.reaped && child.pid > 0) {
      ::kill(child.pid, SIGKILL);
      waitpid(child.pid, nullptr, 0);
    }
    if (child.pipe >= 0) close(child.pipe);
  }
}

void Processes::kill(int index) const { ::kill(pid(index), SIGKILL); }

int Processes::num_running() {
  return static_cast<int>(std::count_if(children_.begin(), children_.end(), [](Child& child) { return !reap(child); }));
}

/// Takes what has been written; never waits for more, because a child's own children may keep the pipe open.
void Processes::drain(Child& child) {
  pollfd item{child.pipe, POLLIN, 0};
  while (poll(&item, 1, 0) > 0) {
    std::array<char, 4096> buffer;
    const ssize_t length = read(child.pipe, buffer.data(), buffer.size());
    if (length <= 0) break;
    child.text.append(buffer.data(), static_cast<size_t>(length));
  }
}

/// Takes what the child has written and looks whether it has ended.
bool Processes::reap(Child& child) {
  if (child.reaped) return true;
  drain(child);
  child.reaped = waitpid(child.pid, &child.wait_status, WNOHANG) == child.pid;
  return child.reaped;
}

std::vector<Outcome> Processes::wait(double timeout_s) {
  const int64_t deadline = now_ns() + static_cast<int64_t>(timeout_s * 1e9);
  std::vector<Outcome> outcomes(children_.size());
  while (true) {
    bool all = true;
    for (Child& child : children_) all = reap(child) && all;
    if (all || now_ns() > deadline) break;
    poll(nullptr, 0, 2);
  }
  for (size_t i = 0; i < children_.size(); ++i) {
    Child& child = children_[i];
    if (!child.reaped) {
      outcomes[i].timed_out = true;
      ::kill(child.pid, SIGKILL);
      waitpid(child.pid, &child.wait_status, 0);
      child.reaped = true;
    }
    drain(child);
    if (WIFSIGNALED(child.wait_status)) outcomes[i].signal = WTERMSIG(child.wait_status);
    outcomes[i].exited = WIFEXITED(child.wait_status) && WEXITSTATUS(child.wait_status) == 0 && !outcomes[i].timed_out;
    if (outcomes[i].exited) outcomes[i].status = unpack(child.text);
  }
  return outcomes;
}

SharedNumber::SharedNumber()
    : number_(static_cast<std::atomic<int64_t>*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
SharedNumber::~SharedNumber() { munmap(number_, 4096); }

bool SharedCounter::wait_for(int value, double timeout_s) const {
  const int64_t deadline = now_ns() + static_cast<int64_t>(timeout_s * 1e9);
  while (this->value() < value) {
    if (now_ns() > deadline) return false;
    poll(nullptr, 0, 1);
  }
  return true;
}

void pause_us(int64_t microseconds) {
  const timespec time{microseconds / 1'000'000, microseconds % 1'000'000 * 1000};
  nanosleep(&time, nullptr);
}

std::string unique_job() {
  static std::atomic<int> counter{0};
  return fmt::format("test-{}-{}-{}", getpid(), now_ns(), counter.fetch_add(1));
}

std::vector<Status> run_engine(Engine engine, int size, const GroupOptions& options, const std::function<Status(Group&)>& body) {
  if (engine == Engine::threads) return run_ranks(size, options, body);
  const std::string job = unique_job();
  Processes processes(size, [&](int rank) {
    Result<std::unique_ptr<Group>> group = join_shm_group(rank, size, job, "g", options);
    if (!group.ok()) return group.status();
    Status status = body(**group);
    if (!status.ok()) (*group)->abort(status);
    return status;
  });
  std::vector<Status> statuses;
  for (const Outcome& outcome : processes.wait(options.timeout_s + 60)) {
    statuses.push_back(outcome.exited ? outcome.status : Status::internal("the rank's process: " + outcome.to_string()));
  }
  return statuses;
}

std::string first_error(const std::vector<Status>& statuses) {
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    if (!statuses[rank].ok()) return fmt::format("rank {}: {}", rank, statuses[rank].to_string());
  }
  return "";
}

}  // namespace plait::test
