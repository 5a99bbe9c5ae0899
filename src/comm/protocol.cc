#include "comm/protocol.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/cpu.h"
#include "comm/deadline.h"
#include "comm/failure.h"

namespace plait::comm {
namespace {

/// A sleep between two looks at the failure record, at the peers' life and at the clock. Bounds how late a death is noticed.
constexpr int64_t slice_ns = 20'000'000;

std::string describe(const SlotHeader& header) {
  if (header.kind == CallKind::barrier) return fmt::format("barrier '{}'", text(header.stage));
  return fmt::format("exchange '{}' of {} bytes", text(header.stage), header.payload_bytes);
}

bool same_call(const SlotHeader& a, const SlotHeader& b) {
  return a.kind == b.kind && a.payload_bytes == b.payload_bytes && a.round == b.round && text(a.stage) == text(b.stage);
}

std::string list(const std::vector<int>& ranks) { return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", ")); }

}  // namespace

Protocol::Protocol(int rank, const GroupOptions& options, Control control, std::shared_ptr<Liveness> liveness)
    : rank_(rank), options_(options), control_(std::move(control)), liveness_(std::move(liveness)), process_(getpid()) {}

void Protocol::introduce(int process) {
  RankCell& cell = control_.cell(rank_);
  cell.process.store(process, std::memory_order_relaxed);
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return;  // more CPUs than the set holds: this rank then counts none
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cell.cpus[static_cast<size_t>(cpu) / 64].fetch_or(uint64_t{1} << (cpu % 64), std::memory_order_relaxed);
  }
}

void Protocol::decide_spin() {
  int num_cpus = 0;
  for (size_t word = 0; word < RankCell{}.cpus.size(); ++word) {
    uint64_t any = 0;
    for (int rank = 0; rank < size(); ++rank) any |= control_.cell(rank).cpus[word].load(std::memory_order_relaxed);
    num_cpus += std::popcount(any);
  }
  const double quota = cgroup_cpu_quota("");
  if (quota > 0) num_cpus = std::min(num_cpus, static_cast<int>(std::floor(quota)));
  spin_ns_ = size() <= num_cpus ? int64_t{std::max(options_.spin_us, 0)} * 1000 : 0;
}

Slot Protocol::begin_round(CallKind kind, std::string_view stage, int64_t payload_bytes) {
  ++round_;
  stage_ = stage;
  Slot slot = control_.slot(rank_, static_cast<int>(round_ & 1));
  SlotHeader& header = *slot.header;
  header.round = round_;
  header.payload_bytes = payload_bytes;
  header.kind = kind;
  header.num_releases = 0;
  header.num_retired = 0;
  set_text(header.stage, stage);
  header.regions.fill(RegionRef{});
  return slot;
}

Status Protocol::end_round() {
  ControlHead& head = control_.head();
  control_.cell(rank_).posted.store(round_, std::memory_order_release);
  if (head.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(size())) {
    head.arrived.store(0, std::memory_order_relaxed);
    head.rounds_done.store(round_, std::memory_order_release);
    head.round_event.notify(control_.scope());
  } else {
    auto ready = [&] { return head.rounds_done.load(std::memory_order_acquire) >= round_; };
    Status status = wait_until(head.round_event, ready, [&] { return missing_in_round(); });
    if (!status.ok()) return status;
  }
  return check_agreement();
}

std::vector<int> Protocol::missing_in_round() const {
  std::vector<int> missing;
  for (int rank = 0; rank < size(); ++rank) {
    if (control_.cell(rank).posted.load(std::memory_order_acquire) < round_) missing.push_back(rank);
  }
  return missing;
}

/// Every rank reads the same headers and so comes to the same verdict: the first rank that differs from the call that most ranks make.
Status Protocol::check_agreement() {
  const SlotHeader& own = *slot(rank_).header;
  bool agreed = true;
  for (int rank = 0; rank < size(); ++rank) agreed = agreed && same_call(own, *slot(rank).header);
  if (agreed) return {};
  int reference = 0;
  int most = 0;
  for (int rank = 0; rank < size(); ++rank) {
    int votes = 0;
    for (int other = 0; other < size(); ++other) votes += same_call(*slot(rank).header, *slot(other).header) ? 1 : 0;
    if (votes > most) {
      most = votes;
      reference = rank;
    }
  }
  int culprit = 0;
  while (same_call(*slot(culprit).header, *slot(reference).header)) ++culprit;
  return fail(Status::invalid_argument(fmt::format("rank {} calls {} while rank {} calls {}: all ranks must make the same calls in the same order",
                                                   culprit, describe(*slot(culprit).header), reference, describe(*slot(reference).header)))
                  .at_rank(culprit)
                  .in_stage(text(slot(culprit).header->stage)));
}

template <typename Ready, typename Missing>
Status Protocol::wait_until(Event& event, Ready ready, Missing missing) {
  if (ready()) return {};
  const int64_t begin = now_ns();
  const std::vector<int> late = recorder_ != nullptr ? missing() : std::vector<int>();
  bool done = false;
  for (int64_t end = begin + spin_ns_; !done && now_ns() < end; done = ready()) spin_pause();
  Status status = done ? Status() : sleep_until(event, ready, missing);
  if (recorder_ != nullptr) {
    recorder_->add(Counter::waits, 1);
    recorder_->add(Counter::wait_ns, now_ns() - begin);
    for (int rank : late) recorder_->add_wait(rank, now_ns() - begin);
  }
  return status;
}

/// In every turn the reasons to give up are looked at before `ready`: what a rank did before it failed, left or died counts.
template <typename Ready, typename Missing>
Status Protocol::sleep_until(Event& event, Ready ready, Missing missing) {
  const int64_t deadline = deadline_after(options_.timeout_s);
  int64_t next_look = std::min(now_ns() + slice_ns, deadline);
  while (true) {
    event.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = event.count.load(std::memory_order_seq_cst);
    const int64_t left_ns = next_look - now_ns();
    if (!ready() && !failed(control_) && left_ns > 0) futex_wait(event.count, seen, left_ns, control_.scope());
    event.sleepers.fetch_sub(1, std::memory_order_relaxed);
    const bool stopped = failed(control_);
    if (ready()) return {};
    if (stopped) return failure();
    const int64_t now = now_ns();
    if (now < next_look) continue;
    next_look = now < deadline ? std::min(now + slice_ns, deadline) : now + slice_ns;
    const std::vector<int> left = ranks_that_left();
    Status dead = health();
    const std::vector<int> awaited = missing();
    if (awaited.empty()) continue;
    if (!dead.ok()) return dead;
    Status gone = check_left(left, awaited);
    if (!gone.ok()) return gone;
    if (asked_to_stop()) return stop_waiting(awaited);
    if (now >= deadline) return fail(too_late(awaited));
  }
}

std::vector<int> Protocol::ranks_that_left() const {
  std::vector<int> left;
  for (int rank = 0; rank < size(); ++rank) {
    if (control_.cell(rank).left.load(std::memory_order_acquire) != 0) left.push_back(rank);
  }
  return left;
}

Status Protocol::check_left(const std::vector<int>& left, const std::vector<int>& awaited) {
  for (int rank : awaited) {
    if (!std::binary_search(left.begin(), left.end(), rank)) continue;
    return fail(Status::peer_lost(fmt::format("rank {} left the group{} while rank {} waited for it in '{}'", rank, last_seen(rank), rank_, stage_))
                    .at_rank(rank)
                    .in_stage(stage_));
  }
  return {};
}

Status Protocol::too_late(const std::vector<int>& awaited) const {
  return Status::timeout(
             fmt::format("{} did not reach '{}' within {:g} s of rank {}; {} was last seen{}; a longer time-out can be set if it is only slow",
                         list(awaited), stage_, options_.timeout_s, rank_, who(awaited.front()), last_seen(awaited.front())))
      .at_rank(awaited.front())
      .in_stage(stage_);
}

Status Protocol::stop_waiting(const std::vector<int>& awaited) {
  const std::string text = fmt::format("rank {} was interrupted while it waited for {} in '{}'", rank_, list(awaited), stage_);
  record_failure(control_, rank_, Status::aborted(text).at_rank(rank_).in_stage(stage_));
  return Status::interrupted(text).at_rank(rank_).in_stage(stage_);
}

std::string Protocol::who(int rank) const {
  const int process = control_.cell(rank).process.load(std::memory_order_relaxed);
  return process > 0 ? fmt::format("rank {} (process {})", rank, process) : fmt::format("rank {}", rank);
}

/// The slot of a rank's last posted round cannot change while this rank is inside a call: its owner would need this rank's next post.
std::string Protocol::last_seen(int rank) const {
  const uint64_t posted = control_.cell(rank).posted.load(std::memory_order_acquire);
  if (posted == 0) return " before its first call";
  return fmt::format(" after {}", describe(*control_.slot(rank, static_cast<int>(posted & 1)).header));
}

Status Protocol::health() {
  if (failed(control_)) return read_failure(control_);
  for (int rank : liveness_->find_dead()) {
    if (control_.cell(rank).left.load(std::memory_order_acquire) != 0) continue;  // it ended after its last call
    return fail(Status::peer_lost(fmt::format("{} ended{}; rank {} noticed it in '{}'", who(rank), last_seen(rank), rank_, stage_))
                    .at_rank(rank)
                    .in_stage(stage_));
  }
  return {};
}

Status Protocol::fail(const Status& why) {
  record_failure(control_, rank_, why);
  return read_failure(control_);
}

Status Protocol::failure() const { return read_failure(control_); }

Status Protocol::signal(int channel, uint64_t value) {
  if (channel < 0 || channel >= num_channels) {
    return fail(
        Status::invalid_argument(fmt::format("rank {} signals channel {}: channels are 0 to {}", rank_, channel, num_channels - 1)).at_rank(rank_));
  }
  RankCell& cell = control_.cell(rank_);
  std::atomic<uint64_t>& counter = cell.channels[static_cast<size_t>(channel)].value;
  const uint64_t current = counter.load(std::memory_order_relaxed);
  if (value < current) {
    return fail(
        Status::invalid_argument(fmt::format("rank {} signals {} on channel {}, which is at {}: counters only rise", rank_, value, channel, current))
            .at_rank(rank_));
  }
  counter.store(value, std::memory_order_release);
  cell.event.notify(control_.scope());
  return failed(control_) ? read_failure(control_) : Status();
}

uint64_t Protocol::signal_value(int peer, int channel) const {
  return control_.cell(peer).channels[static_cast<size_t>(channel)].value.load(std::memory_order_acquire);
}

Status Protocol::wait(int peer, int channel, uint64_t value, std::string_view stage) {
  if (peer < 0 || peer >= size() || channel < 0 || channel >= num_channels) {
    return fail(Status::invalid_argument(fmt::format("rank {} waits for channel {} of rank {}: channels are 0 to {}, ranks 0 to {}", rank_, channel,
                                                     peer, num_channels - 1, size() - 1))
                    .at_rank(rank_)
                    .in_stage(stage));
  }
  stage_ = stage;
  auto ready = [&] { return signal_value(peer, channel) >= value; };
  auto missing = [&] { return ready() ? std::vector<int>() : std::vector<int>{peer}; };
  return wait_until(control_.cell(peer).event, ready, missing);
}

void Protocol::leave() {
  if (process_ != getpid()) return;  // a forked child's copy of the group ends; the rank lives on in the parent
  control_.cell(rank_).left.store(1, std::memory_order_release);
  control_.wake_all();
}

Status Protocol::lock_reserving() {
  std::atomic<uint32_t>& holder = control_.head().reserving;
  const int64_t deadline = deadline_after(options_.timeout_s);
  uint32_t seen = 0;
  while (!holder.compare_exchange_strong(seen, static_cast<uint32_t>(rank_) + 1, std::memory_order_acquire)) {
    futex_wait(holder, seen, slice_ns, control_.scope());
    if (Status status = health(); !status.ok()) return status;
    const int rank = static_cast<int>(seen) - 1;
    if (asked_to_stop()) return stop_waiting({rank});
    if (now_ns() > deadline) {
      return fail(
          Status::timeout(fmt::format("rank {} reserves memory since more than {:g} s; rank {} waits for it", rank, options_.timeout_s, rank_))
              .at_rank(rank)
              .in_stage("allocate"));
    }
    seen = 0;
  }
  return {};
}

void Protocol::unlock_reserving() {
  std::atomic<uint32_t>& holder = control_.head().reserving;
  holder.store(0, std::memory_order_release);
  futex_wake(holder, 1, control_.scope());
}

}  // namespace plait::comm
