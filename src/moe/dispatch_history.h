#pragma once
/// What a group has measured of its layer calls, and the choice of a dispatcher that follows. Every rank of a group holds the same history,
/// because it is fed by exchanged numbers only: so all ranks choose alike.

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "plait/layer.h"

namespace plait::moe {

/// The shortest times of one dispatcher for one kind of call, maxima over the ranks.
struct DispatchTimes {
  int64_t forward_ns = 0, backward_ns = 0;  ///< 0: not measured
  int64_t num_forward = 0;
};

/// The dispatchers that auto chooses from.
inline constexpr std::array candidates = {Dispatcher::alltoall, Dispatcher::mc2};
using CandidateTimes = std::array<DispatchTimes, candidates.size()>;

struct DispatchChoice {
  Dispatcher dispatcher = Dispatcher::mc2;
  std::string reason;
};

class DispatchHistory {
 public:
  /// A call of kind `key` took so long: the numbers of all ranks, 0 where a rank has none. Used at the next exchange.
  void record(const std::string& key, Dispatcher dispatcher, bool backward, std::span<const int64_t> ns);
  /// What an earlier run has measured; does not replace what this one has.
  void seed(const std::string& key, const CandidateTimes& times);
  /// By what is measured, else `rule`; now and then, at the beginning only, the other one so that it is measured too.
  DispatchChoice choose(const std::string& key, const DispatchChoice& rule);
  /// Null where nothing is known of the key.
  const CandidateTimes* find(const std::string& key) const;

 private:
  struct Record {
    CandidateTimes times;
    int64_t num_choices = 0;
  };
  std::map<std::string, Record> records_;
};

}  // namespace plait::moe
