#pragma once
/// Contexts for calls from any thread: a call takes an idle one, or makes one, and gives it back.

#include <memory>
#include <optional>
#include <type_traits>

#include <nanobind/nanobind.h>

#include "errors.h"
#include "plait/context.h"

namespace plait::python {

class ContextLease {
 public:
  static Result<ContextLease> take();
  ~ContextLease();
  ContextLease(ContextLease&&) = default;
  ContextLease& operator=(ContextLease&&) = delete;

  const Context& context() const { return *context_; }

 private:
  explicit ContextLease(std::unique_ptr<Context> context) : context_(std::move(context)) {}
  std::unique_ptr<Context> context_;
};

inline void value_of(Status status) { check(status); }
template <typename T>
T value_of(Result<T> result) {
  check(result.status());
  return result.take();
}

/// Runs body() without the interpreter lock and returns the value of its Result; a failure becomes an exception.
template <typename Body>
auto without_lock(Body&& body) {
  std::optional<std::invoke_result_t<Body>> outcome;
  {
    nanobind::gil_scoped_release release;
    outcome.emplace(body());
  }
  if (PyErr_Occurred() != nullptr) throw nanobind::python_error();  // a signal's handler has ended a wait
  return value_of(std::move(*outcome));
}

/// The same with a context for the calling thread.
template <typename Body>
auto with_context(Body&& body) {
  return without_lock([&]() -> std::invoke_result_t<Body, const Context&> {
    Result<ContextLease> lease = ContextLease::take();
    if (!lease.ok()) return lease.status();
    return body(lease->context());
  });
}

}  // namespace plait::python
