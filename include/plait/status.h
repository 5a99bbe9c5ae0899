#pragma once
/// Status and Result: how every fallible call of the core reports failure. The core never throws, prints, exits or aborts.

#include <cassert>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace plait {

enum class StatusCode : uint8_t {
  ok,
  invalid_argument,    ///< the caller passed a value that the named rule forbids
  resource_exhausted,  ///< memory, shared memory or descriptors are short; nothing was reserved
  timeout,             ///< a wait on another rank exceeded the group's time-out
  peer_lost,           ///< another rank's process ended
  aborted,             ///< another rank failed and stopped the group; the message is that rank's own
  unavailable,         ///< asked for something this machine or build does not have
  interrupted,         ///< the user asked to stop
  internal,            ///< a defect of Plait
};

/// The name of a code as it appears in messages, for example "invalid argument".
std::string_view name(StatusCode code);

/// Success, or an error with a message that shows the value, the rule and what to do, and, where one is known, the culprit:
/// the rank, the stage ("dispatch", "combine") and the expert.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status invalid_argument(std::string message) { return {StatusCode::invalid_argument, std::move(message)}; }
  static Status resource_exhausted(std::string message) { return {StatusCode::resource_exhausted, std::move(message)}; }
  static Status timeout(std::string message) { return {StatusCode::timeout, std::move(message)}; }
  static Status peer_lost(std::string message) { return {StatusCode::peer_lost, std::move(message)}; }
  static Status aborted(std::string message) { return {StatusCode::aborted, std::move(message)}; }
  static Status unavailable(std::string message) { return {StatusCode::unavailable, std::move(message)}; }
  static Status interrupted(std::string message) { return {StatusCode::interrupted, std::move(message)}; }
  static Status internal(std::string message) { return {StatusCode::internal, std::move(message)}; }

  bool ok() const { return code_ == StatusCode::ok; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  int rank() const { return rank_; }                   ///< the culprit's rank, -1 where none is known
  int expert() const { return expert_; }               ///< the expert concerned, -1 where none is
  const std::string& stage() const { return stage_; }  ///< what was going on, "" where unknown

  Status at_rank(int rank) && {
    rank_ = rank;
    return std::move(*this);
  }
  Status in_stage(std::string_view stage) && {
    stage_ = stage;
    return std::move(*this);
  }
  Status at_expert(int expert) && {
    expert_ = expert;
    return std::move(*this);
  }

  /// One line: "timeout: rank 2 did not ... (rank 2, stage dispatch)".
  std::string to_string() const;

 private:
  StatusCode code_ = StatusCode::ok;
  std::string message_;
  std::string stage_;
  int rank_ = -1;
  int expert_ = -1;
};

/// The process exit code that the command line uses for a status: 0 ok, 2 bad input, 3 a rank failed or timed out, 130 interrupted.
int exit_code(const Status& status);

/// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                                  // NOLINT: implicit on purpose, `return value;`
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }  // NOLINT: `return status;`

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() {
    assert(ok());
    return *value_;
  }
  const T& value() const {
    assert(ok());
    return *value_;
  }
  T& operator*() { return value(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  /// Moves the value out. Call it once, after ok().
  T take() {
    assert(ok());
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace plait
