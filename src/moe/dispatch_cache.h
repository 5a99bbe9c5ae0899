#pragma once
/// Times of dispatchers that outlive a process: a small text file per user, a line per kind of call. Safe with many processes: a file is
/// replaced as a whole, and a line that cannot be read counts as not there.

#include <map>
#include <string>

#include "moe/dispatch_history.h"

namespace plait::moe {

class DispatchCache {
 public:
  /// The file in Env::cache_folder(); "" where there is none.
  static std::string default_path();

  explicit DispatchCache(std::string path) : path_(std::move(path)) {}
  /// All lines that can be read.
  std::map<std::string, CandidateTimes> load() const;
  /// Adds or replaces a line. Failing to is no error: the next run measures again.
  void store(const std::string& key, const CandidateTimes& times) const;

 private:
  std::string path_;
};

}  // namespace plait::moe
