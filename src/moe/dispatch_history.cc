#include "moe/dispatch_history.h"

#include <fmt/format.h>

#include <algorithm>

namespace plait::moe {
namespace {

/// A first call touches fresh memory, so one measurement says nothing.
constexpr int64_t enough = 2;
/// Calls by the rule before the other dispatcher is tried.
constexpr int64_t calls_before_trial = 8;
/// What the other dispatcher must save before the rule's is left: measurements scatter.
constexpr double least_gain = 0.02;

size_t index_of(Dispatcher dispatcher) {
  return static_cast<size_t>(std::find(candidates.begin(), candidates.end(), dispatcher) - candidates.begin());
}

void take_minimum(int64_t& best, int64_t ns) { best = best == 0 ? ns : std::min(best, ns); }

bool is_measured(const DispatchTimes& times) { return times.num_forward >= enough; }

}  // namespace

void DispatchHistory::record(const std::string& key, Dispatcher dispatcher, bool backward, std::span<const int64_t> ns) {
  const int64_t slowest = ns.empty() ? 0 : *std::max_element(ns.begin(), ns.end());
  if (slowest <= 0 || index_of(dispatcher) == candidates.size()) return;
  DispatchTimes& times = records_[key].times[index_of(dispatcher)];
  take_minimum(backward ? times.backward_ns : times.forward_ns, slowest);
  if (!backward) ++times.num_forward;
}

void DispatchHistory::seed(const std::string& key, const CandidateTimes& times) {
  CandidateTimes& own = records_[key].times;
  for (size_t i = 0; i < own.size(); ++i) {
    if (!is_measured(own[i]) && times[i].forward_ns > 0) own[i] = {times[i].forward_ns, times[i].backward_ns, enough};
  }
}

DispatchChoice DispatchHistory::choose(const std::string& key, const DispatchChoice& rule) {
  Record& record = records_[key];
  ++record.num_choices;
  const size_t by_rule = index_of(rule.dispatcher), other = 1 - by_rule;
  const DispatchTimes &a = record.times[by_rule], &b = record.times[other];
  if (is_measured(a) && !is_measured(b) && record.num_choices > calls_before_trial) {
    return {candidates[other], fmt::format("{} is tried, so that it is measured too", name(candidates[other]))};
  }
  if (!is_measured(a) || !is_measured(b)) return rule;
  const bool whole_step = a.backward_ns > 0 && b.backward_ns > 0;
  const auto a_ns = static_cast<double>(a.forward_ns + (whole_step ? a.backward_ns : 0));
  const auto b_ns = static_cast<double>(b.forward_ns + (whole_step ? b.backward_ns : 0));
  const bool leave = b_ns < a_ns * (1 - least_gain);
  const size_t chosen = leave ? other : by_rule;
  return {candidates[chosen], fmt::format("measured {}: {} {:.3f} ms, {} {:.3f} ms", whole_step ? "step" : "forward", name(candidates[by_rule]),
                                          a_ns * 1e-6, name(candidates[other]), b_ns * 1e-6)};
}

const CandidateTimes* DispatchHistory::find(const std::string& key) const {
  const auto record = records_.find(key);
  return record != records_.end() ? &record->second.times : nullptr;
}

}  // namespace plait::moe
