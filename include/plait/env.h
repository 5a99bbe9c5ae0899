#pragma once
/// Every environment variable that Plait reads is one member of Env; the list behind it is what `plait info` and docs/environment.md show.

#include <cstdint>
#include <string>
#include <vector>

#include "plait/status.h"

namespace plait {

struct Env {
  std::string kernel;                       ///< PLAIT_KERNEL
  int threads = 0;                          ///< PLAIT_THREADS
  double timeout_s = 60;                    ///< PLAIT_TIMEOUT
  int spin_us = 20;                         ///< PLAIT_SPIN_US
  bool huge_pages = true;                   ///< PLAIT_HUGE_PAGES
  std::string log_level;                    ///< PLAIT_LOG: error, warning, info, debug
  std::string job;                          ///< PLAIT_JOB
  std::string host_id;                      ///< PLAIT_HOST_ID
  std::string dump;                         ///< PLAIT_DUMP: a path
  std::string cache;                        ///< PLAIT_CACHE: a folder, or "off"
  int64_t tile_rows = 0, tile_columns = 0;  ///< PLAIT_TILE

  /// Reads the process environment afresh. A malformed value is an error naming the variable, the value and what is allowed.
  static Result<Env> read();
  /// The folder for what is kept between runs: `cache`, else $XDG_CACHE_HOME/plait, else $HOME/.cache/plait; "" where it is "off" or none of
  /// them is set.
  std::string cache_folder() const;
};

/// One knob, for help and documentation.
struct EnvKnob {
  std::string name;
  std::string default_value;
  std::string text;
  std::string current;  ///< the value in force as text
};
std::vector<EnvKnob> env_knobs();

}  // namespace plait
