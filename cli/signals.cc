#include "cli/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace plait::cli {
namespace {

constexpr int exit_interrupted = 130;
constexpr unsigned last_call_s = 4;  // everything is gone within 5 s of the first signal

std::atomic<bool> flag = false;
static_assert(std::atomic<bool>::is_always_lock_free, "set by a signal handler");

void raise_flag(int) { flag = true; }

void raise_flag_or_leave(int) {
  if (flag.exchange(true)) ::_exit(exit_interrupted);
  ::alarm(last_call_s);
}

void leave(int) { ::_exit(exit_interrupted); }

void handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void install_interrupt_handlers(InterruptPolicy policy) {
  void (*handler)(int) = policy == InterruptPolicy::alone ? raise_flag_or_leave : raise_flag;
  handle(SIGINT, handler);
  handle(SIGTERM, handler);
  handle(SIGALRM, leave);
}

bool interrupted() { return flag; }

}  // namespace plait::cli
