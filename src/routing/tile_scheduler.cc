#include "routing/tile_scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/thread_pool.h"
#include "routing/state_dump.h"

namespace plait {
namespace {

/// How often a worker without work looks whether rows have come while others still run tiles.
constexpr std::chrono::microseconds poll_interval(100);

/// How often the calling thread looks for failed and dead peers while there are tiles to run.
constexpr int64_t look_interval_ns = 50'000'000;

constexpr int none = -1;

}  // namespace

int TileScheduler::add_gate(std::function<Status()> on_open) {
  gates_.push_back({std::move(on_open), 0, {}});
  return static_cast<int>(gates_.size()) - 1;
}

void TileScheduler::add(TileChain chain, RunTile run_tile) {
  for (const TileChain::Lead& lead : chain.leads) {
    if (lead.gate != TileChain::no_gate) ++gates_[static_cast<size_t>(lead.gate)].pending;
  }
  if (chain.until != TileChain::no_gate) gates_[static_cast<size_t>(chain.until)].optional.push_back(static_cast<int>(chains_.size()));
  chains_.push_back(std::move(chain));
  run_tile_.push_back(std::move(run_tile));
}

/// The state of one run. Everything but tiles happens under the mutex.
class TileScheduler::Run {
 public:
  Run(TileScheduler& scheduler, const Context& context, Group& group, const Arrival& arrival)
      : chains_(scheduler.chains_),
        run_tile_(scheduler.run_tile_),
        gates_(scheduler.gates_),
        group_(group),
        arrival_(arrival),
        observer_(context.recorder().observer),
        progress_(chains_.size()),
        arrived_(static_cast<size_t>(group.size())),
        workers_(static_cast<size_t>(context.threads())),
        left_(static_cast<int64_t>(chains_.size())) {}

  Status execute(const Context& context) {
    // Ready at once: it tells the group in which stage a death is noticed from now on.
    Status status = group_.wait(group_.rank(), arrival_.channel, 0, name(arrival_.stage));
    if (!status.ok()) fail(std::move(status));
    for (Gate& gate : gates_) {
      if (gate.pending == 0) open(gate);
    }
    context.pool().parallel_for(context.threads(), [this](int64_t, int worker) { work(worker); });
    record(context.recorder());
    return status_;
  }

  std::string describe_unfinished();

 private:
  struct Progress {
    int step = none;        ///< none: not begun; num_steps: ended
    int32_t taken = 0;      ///< tiles of the step handed out
    int32_t done = 0;       ///< and done
    bool was_late = false;  ///< it was next in order, but its rows were missing
  };
  struct Worker {
    int chain = none;
    std::array<int64_t, num_stages> stage_ns{};
  };

  void work(int worker);
  bool take(int worker, TileAt& at);
  bool has_tile(int chain) const;
  bool is_active(int chain) const { return std::find(active_.begin(), active_.end(), chain) != active_.end(); }
  int startable(bool filler);
  int active_with_tile(bool filler) const;
  bool has_arrived(int source);
  bool rows_missing(const TileChain& chain, int& rank);
  bool is_open(int gate) const { return gate == TileChain::no_gate || gates_[static_cast<size_t>(gate)].pending == 0; }
  void begin(int chain);
  void finish_tile(int chain);
  void advance(int chain);
  void count_down(int gate);
  void open(Gate& gate);
  void wait_for_work(int worker, std::unique_lock<std::mutex>& lock);
  void wait_for_peer(std::unique_lock<std::mutex>& lock);
  int first_missing(const TileChain*& waiting);
  void look_at_peers(int64_t now);
  void fail(Status status);
  Status explained(const Status& error, int32_t expert);
  void record(Recorder& recorder) const;

  const std::vector<TileChain>& chains_;
  const std::vector<RunTile>& run_tile_;
  std::vector<Gate>& gates_;
  Group& group_;
  const Arrival& arrival_;
  ZoneObserver* observer_;  ///< told of the calling thread's tiles

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Progress> progress_;
  std::vector<char> arrived_;
  std::vector<Worker> workers_;
  std::vector<int> active_;                             ///< begun and not ended
  size_t first_unbegun_ = 0;                            ///< all chains before it have begun
  int64_t left_;                                        ///< chains not ended
  int running_ = 0;                                     ///< tiles being run
  int64_t next_look_ns_ = now_ns() + look_interval_ns;  ///< at the peers
  int64_t num_tiles_ = 0, num_late_ = 0;
  Status status_;
};

void TileScheduler::Run::work(int worker) {
  Worker& self = workers_[static_cast<size_t>(worker)];
  std::unique_lock lock(mutex_);
  int64_t mark = now_ns();
  auto add_time = [&](Stage stage) {
    const int64_t now = now_ns();
    self.stage_ns[static_cast<size_t>(stage)] += now - mark;
    mark = now;
  };
  while (left_ > 0 && status_.ok()) {
    if (worker == 0 && mark >= next_look_ns_) look_at_peers(mark);
    TileAt at{};
    if (!take(worker, at)) {
      wait_for_work(worker, lock);
      add_time(arrival_.stage);
      continue;
    }
    const int chain = self.chain;
    const Stage stage = chains_[static_cast<size_t>(chain)].steps[static_cast<size_t>(at.step)].stage;
    ++running_;
    lock.unlock();
    if (worker == 0 && observer_ != nullptr) observer_->begin(stage);
    run_tile_[static_cast<size_t>(chain)](at);
    if (worker == 0 && observer_ != nullptr) observer_->end(stage);
    lock.lock();
    add_time(stage);
    --running_;
    finish_tile(chain);
  }
  changed_.notify_all();
}

bool TileScheduler::Run::has_tile(int chain) const {
  const Progress& p = progress_[static_cast<size_t>(chain)];
  return p.taken < chains_[static_cast<size_t>(chain)].steps[static_cast<size_t>(p.step)].num_tiles;
}

bool TileScheduler::Run::take(int worker, TileAt& at) {
  int& own = workers_[static_cast<size_t>(worker)].chain;
  if (own != none && chains_[static_cast<size_t>(own)].filler) own = none;  // what has become ready meanwhile goes first
  while (own == none || !is_active(own) || !has_tile(own)) {                // a chain without tiles ends as it begins: then look again
    own = startable(false);
    if (own == none) own = active_with_tile(false);
    if (own == none) own = active_with_tile(true);
    if (own == none) own = startable(true);
    if (own == none) return false;
    if (progress_[static_cast<size_t>(own)].step == none) begin(own);
  }
  Progress& p = progress_[static_cast<size_t>(own)];
  at = {p.step, p.taken++, worker};
  return true;
}

int TileScheduler::Run::active_with_tile(bool filler) const {
  const auto found = std::find_if(active_.begin(), active_.end(),
                                  [&](int chain) { return chains_[static_cast<size_t>(chain)].filler == filler && has_tile(chain); });
  return found != active_.end() ? *found : none;
}

/// The first chain in order that may begin; none where there is none.
int TileScheduler::Run::startable(bool filler) {
  while (first_unbegun_ < chains_.size() && progress_[first_unbegun_].step != none) ++first_unbegun_;
  for (size_t i = first_unbegun_; i < chains_.size(); ++i) {
    if (progress_[i].step != none || chains_[i].filler != filler || !is_open(chains_[i].behind)) continue;
    int rank = none;
    if (!rows_missing(chains_[i], rank)) return static_cast<int>(i);
    progress_[i].was_late = true;
  }
  return none;
}

bool TileScheduler::Run::has_arrived(int source) {
  char& arrived = arrived_[static_cast<size_t>(source)];
  if (arrived == 0) arrived = group_.signal_value(source, arrival_.channel) >= arrival_.value ? 1 : 0;
  return arrived != 0;
}

/// True where rows are still on their way; `rank` is the first whose are.
bool TileScheduler::Run::rows_missing(const TileChain& chain, int& rank) {
  for (int32_t source : chain.sources) {
    if (has_arrived(source)) continue;
    rank = source;
    return true;
  }
  return false;
}

void TileScheduler::Run::begin(int chain) {
  Progress& p = progress_[static_cast<size_t>(chain)];
  num_late_ += p.was_late ? 1 : 0;
  const int until = chains_[static_cast<size_t>(chain)].until;
  if (until != TileChain::no_gate) ++gates_[static_cast<size_t>(until)].pending;
  p.step = 0;
  active_.push_back(chain);
  if (chains_[static_cast<size_t>(chain)].steps[0].num_tiles == 0) advance(chain);
}

void TileScheduler::Run::finish_tile(int chain) {
  ++num_tiles_;
  Progress& p = progress_[static_cast<size_t>(chain)];
  if (++p.done == chains_[static_cast<size_t>(chain)].steps[static_cast<size_t>(p.step)].num_tiles) advance(chain);
}

/// The chain's step is done: gates count down, the next step that has tiles begins.
void TileScheduler::Run::advance(int number) {
  const TileChain& chain = chains_[static_cast<size_t>(number)];
  Progress& p = progress_[static_cast<size_t>(number)];
  do {
    for (const TileChain::Lead& lead : chain.leads) {
      if (lead.gate != TileChain::no_gate && lead.after == p.step) count_down(lead.gate);
    }
    ++p.step;
    p.taken = p.done = 0;
  } while (p.step < chain.num_steps && chain.steps[static_cast<size_t>(p.step)].num_tiles == 0);
  if (p.step == chain.num_steps) {
    active_.erase(std::find(active_.begin(), active_.end(), number));
    --left_;
    if (chain.until != TileChain::no_gate) count_down(chain.until);
  }
  changed_.notify_all();
}

void TileScheduler::Run::count_down(int number) {
  Gate& gate = gates_[static_cast<size_t>(number)];
  if (--gate.pending == 0) open(gate);
}

void TileScheduler::Run::open(Gate& gate) {
  for (int chain : gate.optional) {
    Progress& p = progress_[static_cast<size_t>(chain)];
    if (p.step != none) continue;
    p.step = chains_[static_cast<size_t>(chain)].num_steps;
    --left_;
  }
  if (!gate.on_open) return;
  Status status = gate.on_open();
  if (!status.ok()) fail(std::move(status));
}

void TileScheduler::Run::wait_for_work(int worker, std::unique_lock<std::mutex>& lock) {
  if (left_ == 0) return;
  if (worker == 0 && running_ == 0) return wait_for_peer(lock);
  changed_.wait_for(lock, poll_interval);
}

/// The rank that the first chain in order waits for.
int TileScheduler::Run::first_missing(const TileChain*& waiting) {
  int rank = none;
  for (size_t i = first_unbegun_; i < chains_.size(); ++i) {
    if (progress_[i].step != none || !is_open(chains_[i].behind)) continue;
    waiting = &chains_[i];
    if (rows_missing(chains_[i], rank)) return rank;
  }
  return none;
}

void TileScheduler::Run::wait_for_peer(std::unique_lock<std::mutex>& lock) {
  const TileChain* waiting = nullptr;
  const int rank = first_missing(waiting);
  if (rank == none) {
    if (waiting == nullptr) fail(Status::internal("tiles wait for each other").in_stage(name(arrival_.stage)));
    return;  // its rows came between two looks
  }
  lock.unlock();
  Status status = group_.wait(rank, arrival_.channel, arrival_.value, name(arrival_.stage));
  lock.lock();
  if (!status.ok()) return fail(explained(status, waiting->expert));
  changed_.notify_all();
}

/// A death or failure must not stay unnoticed as long as there is work: peers may run for long without a wait.
void TileScheduler::Run::look_at_peers(int64_t now) {
  Status status = group_.health();
  if (!status.ok()) fail(explained(status, none));
  next_look_ns_ = now + look_interval_ns;
}

/// The error with what it means here: the blocks of rows that wait for the rank concerned. `expert` is named where none does.
Status TileScheduler::Run::explained(const Status& error, int32_t expert) {
  int64_t num_blocks = 0;
  for (size_t i = first_unbegun_; i < chains_.size(); ++i) {
    const std::vector<int32_t>& sources = chains_[i].sources;
    const bool waits = progress_[i].step == none && std::find(sources.begin(), sources.end(), error.rank()) != sources.end();
    if (!waits || has_arrived(error.rank())) continue;
    if (++num_blocks == 1) expert = chains_[i].expert;
  }
  if (num_blocks == 0) return concerning(error, "", expert);
  return concerning(
      error,
      fmt::format("{} of rows {} for rank {}, the first of expert {}", num_blocks == 1 ? "1 block" : fmt::format("{} blocks", num_blocks),
                  num_blocks == 1 ? "waits" : "wait", error.rank(), expert),
      expert);
}

void TileScheduler::Run::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
  changed_.notify_all();
}

/// Times are means over the workers, so that they add up to the wall time of the run.
void TileScheduler::Run::record(Recorder& recorder) const {
  std::array<int64_t, num_stages> total{};
  for (const Worker& worker : workers_) {
    for (size_t i = 0; i < total.size(); ++i) total[i] += worker.stage_ns[i];
  }
  for (size_t i = 0; i < total.size(); ++i) {
    if (total[i] > 0) recorder.add_stage_ns(static_cast<Stage>(i), total[i] / static_cast<int64_t>(workers_.size()));
  }
  recorder.add(Counter::tiles, num_tiles_);
  recorder.add(Counter::chains_late, num_late_);
}

std::string TileScheduler::Run::describe_unfinished() {
  std::string text;
  for (size_t i = 0; i < chains_.size(); ++i) {
    const TileChain& chain = chains_[i];
    const Progress& p = progress_[i];
    if (p.step == chain.num_steps || (p.step == none && chain.until != TileChain::no_gate)) continue;
    const Stage stage = chain.steps[static_cast<size_t>(std::max(p.step, 0))].stage;
    text += fmt::format("expert {} rows {}-{} {}: ", chain.expert, chain.row_begin, chain.row_end, name(stage));
    std::vector<int32_t> missing;
    for (int32_t source : chain.sources) {
      if (!has_arrived(source)) missing.push_back(source);
    }
    if (p.step != none) {
      text += fmt::format("{} of {} tiles done\n", p.done, chain.steps[static_cast<size_t>(p.step)].num_tiles);
    } else if (!missing.empty()) {
      text += fmt::format("waits for rows of rank {}\n", fmt::join(missing, ", "));
    } else {
      text += is_open(chain.behind) ? "not begun\n" : "waits for other tiles of this rank\n";
    }
  }
  return text;
}

Status TileScheduler::run(const Context& context, Group& group, const Arrival& arrival) {
  Run run(*this, context, group, arrival);
  Status status = run.execute(context);
  if (!status.ok()) unfinished_ = run.describe_unfinished();
  return status;
}

std::string TileScheduler::describe_unfinished() const { return unfinished_; }

}  // namespace plait
