#include "comm/failure.h"

#include <fmt/format.h>

#include <string>

#include "plait/counters.h"

namespace plait::comm {
namespace {

constexpr int64_t write_limit_ns = 1'000'000'000;  // writing takes microseconds; a preempted writer may need some time slices

}  // namespace

void record_failure(const Control& control, int rank, const Status& why) {
  FailureRecord& record = control.head().failure;
  uint32_t none = 0;
  const auto claimed = static_cast<uint32_t>(2 * (rank + 1));
  if (!record.state.compare_exchange_strong(none, claimed)) return;
  record.code = static_cast<int32_t>(why.code());
  record.rank = why.rank();
  record.expert = why.expert();
  set_text(record.stage, why.stage());
  set_text(record.message, why.message());
  record.state.store(claimed + 1, std::memory_order_release);
  control.wake_all();
}

Status read_failure(const Control& control) {
  const FailureRecord& record = control.head().failure;
  uint32_t state = record.state.load(std::memory_order_acquire);
  if (state == 0) return {};
  const int64_t deadline = now_ns() + write_limit_ns;
  while (state % 2 == 0) {
    if (now_ns() > deadline) {
      const int writer = static_cast<int>(state / 2) - 1;
      return Status::peer_lost(fmt::format("rank {} ended while it told the others why it stopped the group", writer)).at_rank(writer);
    }
    futex_wait(record.state, state, 1'000'000, control.scope());
    state = record.state.load(std::memory_order_acquire);
  }
  return Status(static_cast<StatusCode>(record.code), std::string(text(record.message)))
      .at_rank(record.rank)
      .at_expert(record.expert)
      .in_stage(text(record.stage));
}

}  // namespace plait::comm
