#include "moe/automatic.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "base/cpu.h"
#include "moe/dispatch_cache.h"
#include "plan/dispatch_rule.h"

namespace plait::moe {
namespace {

/// What a rank tells with an exchange of counts: the time of its last call, and rank 0 what its cache has for the expected kind of call.
enum Note : size_t { own_time, cached_times };
static_assert(cached_times + 2 * candidates.size() <= CallSignature::num_notes);

/// A group's memory of its layer calls, kept with the group.
struct GroupTimes {
  struct Pending {
    std::string kind;
    Dispatcher dispatcher;
    bool backward;
    int64_t ns;
  };
  DispatchHistory history;
  std::map<std::string, std::string> last_kind;                 ///< per shape: what its last call was
  std::map<std::string, plan::ExchangeCase> cases;              ///< per kind
  std::optional<Pending> pending;                               ///< not yet told
  std::optional<std::map<std::string, CandidateTimes>> cached;  ///< rank 0's, once read
};

GroupTimes& times_of(Group& group) {
  std::shared_ptr<void>& slot = group.attachment();
  if (!slot) slot = std::make_shared<GroupTimes>();
  return *std::static_pointer_cast<GroupTimes>(slot);
}

/// What all ranks agree on before the call.
std::string shape_of(const LayerCall& call) {
  const LayerConfig& c = call.config;
  return fmt::format("{} h{} i{} e{} k{} r{}{}", name(c.dtype), c.hidden, c.intermediate, c.router.num_experts, c.router.top_k, call.group.size(),
                     c.recompute ? " recompute" : "");
}

int64_t log2_bucket(int64_t n) { return std::bit_width(static_cast<uint64_t>(std::max<int64_t>(n, 0))); }

/// The shape with the number of tokens and the skew, both as powers of two.
std::string kind_of(const std::string& shape, const CountsMatrix& counts, int64_t total) {
  const ExpertPlacement& place = counts.placement;
  int64_t most = 0;
  for (int rank = 0; rank < place.num_ranks; ++rank) {
    int64_t rows = 0;
    for (int64_t j = 0; j < place.experts_per_rank(); ++j) {
      for (int source = 0; source < place.num_ranks; ++source) rows += counts.at(source, place.global(rank, j));
    }
    most = std::max(most, rows);
  }
  return fmt::format("{} t{} s{}", shape, log2_bucket(total), total > 0 ? log2_bucket(most * place.num_ranks / total) : 0);
}

/// Times hold for one CPU, engine and number of threads.
std::string cache_key(const LayerCall& call, const std::string& kind) {
  return fmt::format("{}, {} {} threads, {}", cpu_features().model, name(call.group.engine()), call.context.threads(), kind);
}

DispatchChoice choose_by_rule(const plan::ExchangeCase& c) {
  const double unfused = plan::unfused_cost_us(c), fused = plan::fused_cost_us(c);
  return {fused <= unfused ? Dispatcher::mc2 : Dispatcher::alltoall,
          fmt::format("rule: copies of alltoall {:.0f} us, overhead of mc2 {:.0f} us", unfused, fused)};
}

bool is_complete(const CandidateTimes& times) {
  return std::all_of(times.begin(), times.end(), [](const DispatchTimes& t) { return t.num_forward >= 2 && t.backward_ns > 0; });
}

}  // namespace

DispatchChoice choose_dispatcher(const LayerCall& call) {
  if (call.config.dispatcher != Dispatcher::automatic) return {call.config.dispatcher, "as configured"};
  GroupTimes& times = times_of(call.group);
  const auto kind = times.last_kind.find(shape_of(call));
  if (kind == times.last_kind.end()) return {Dispatcher::mc2, "first call of this shape"};
  return times.history.choose(kind->second, choose_by_rule(times.cases[kind->second]));
}

void tell_times(const LayerCall& call, CallSignature& signature) {
  GroupTimes& times = times_of(call.group);
  signature.notes[own_time] = times.pending ? times.pending->ns : 0;
  if (call.config.dispatcher != Dispatcher::automatic || call.group.rank() != 0) return;
  const auto kind = times.last_kind.find(shape_of(call));
  if (kind == times.last_kind.end() || times.history.find(kind->second) != nullptr) return;
  if (!times.cached) times.cached = DispatchCache(DispatchCache::default_path()).load();
  const auto known = times.cached->find(cache_key(call, kind->second));
  if (known == times.cached->end()) return;
  for (size_t i = 0; i < candidates.size(); ++i) {
    signature.notes[cached_times + 2 * i] = known->second[i].forward_ns;
    signature.notes[cached_times + 2 * i + 1] = known->second[i].backward_ns;
  }
}

void take_times(LayerCall& call, const CountsMatrix& counts) {
  GroupTimes& times = times_of(call.group);
  if (times.pending) {
    std::vector<int64_t> ns;
    for (const auto& notes : counts.notes) ns.push_back(notes[own_time]);
    times.history.record(times.pending->kind, times.pending->dispatcher, times.pending->backward, ns);
    const CandidateTimes* known = times.history.find(times.pending->kind);
    if (call.config.dispatcher == Dispatcher::automatic && call.group.rank() == 0 && known != nullptr && is_complete(*known)) {
      const std::string key = cache_key(call, times.pending->kind);
      if (!times.cached) times.cached.emplace();
      if (times.cached->emplace(key, *known).second) DispatchCache(DispatchCache::default_path()).store(key, *known);
    }
    times.pending.reset();
  }
  const std::string shape = shape_of(call);
  const auto expected = times.last_kind.find(shape);
  if (expected != times.last_kind.end() && counts.notes[0][cached_times] > 0) {
    CandidateTimes told;
    for (size_t i = 0; i < candidates.size(); ++i) told[i] = {counts.notes[0][cached_times + 2 * i], counts.notes[0][cached_times + 2 * i + 1], 0};
    times.history.seed(expected->second, told);
  }
  const int64_t total = std::accumulate(counts.counts.begin(), counts.counts.end(), int64_t{0});
  call.kind = kind_of(shape, counts, total);
  const int64_t k = call.config.router.top_k;
  times.cases[call.kind] = {total / (call.group.size() * k), k, counts.placement.experts_per_rank(), call.config.hidden * size_of(call.config.dtype)};
  times.last_kind[shape] = call.kind;
}

void note_time(const LayerCall& call, bool backward, int64_t ns) { times_of(call.group).pending = {call.kind, call.dispatcher, backward, ns}; }

}  // namespace plait::moe
