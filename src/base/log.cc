#include "base/log.h"

#include <atomic>
#include <memory>
#include <mutex>

namespace plait {
namespace {

constexpr int silent = -1;
std::atomic<int> level_in_force = silent;

struct Sink {
  std::mutex mutex;
  LogSink function;
};
Sink& sink() {
  static auto* the_sink = new Sink;  // never destroyed: worker threads may log while statics go
  return *the_sink;
}

}  // namespace

void set_log_sink(LogSink function, LogLevel up_to) {
  std::scoped_lock lock(sink().mutex);
  level_in_force = function ? static_cast<int>(up_to) : silent;
  sink().function = std::move(function);
}

void log(LogLevel level, std::string_view text) {
  if (static_cast<int>(level) > level_in_force.load(std::memory_order_relaxed)) return;
  std::scoped_lock lock(sink().mutex);
  if (sink().function) sink().function(level, text);
}

}  // namespace plait
