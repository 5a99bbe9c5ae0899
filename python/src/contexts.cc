#include "contexts.h"

#include <pthread.h>

#include <mutex>
#include <vector>

namespace plait::python {
namespace {

struct IdleContexts {
  std::mutex mutex;
  std::vector<std::unique_ptr<Context>> contexts;
};

/// Never destroyed: calls may still come while the interpreter ends. A child of fork() may use what was idle: contexts start new
/// threads there by themselves.
IdleContexts& idle() {
  static IdleContexts* instance = [] {
    pthread_atfork([] { idle().mutex.lock(); }, [] { idle().mutex.unlock(); }, [] { idle().mutex.unlock(); });
    return new IdleContexts();
  }();
  return *instance;
}

}  // namespace

Result<ContextLease> ContextLease::take() {
  {
    std::lock_guard lock(idle().mutex);
    if (!idle().contexts.empty()) {
      ContextLease lease(std::move(idle().contexts.back()));
      idle().contexts.pop_back();
      return lease;
    }
  }
  Result<std::unique_ptr<Context>> made = Context::create();
  if (!made.ok()) return made.status();
  return ContextLease(made.take());
}

ContextLease::~ContextLease() {
  if (context_ == nullptr) return;
  std::lock_guard lock(idle().mutex);
  idle().contexts.push_back(std::move(context_));
}

}  // namespace plait::python
