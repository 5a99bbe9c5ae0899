#pragma once
/// Logging goes to a sink that the program sets; the core itself never prints.

#include <functional>
#include <string_view>

namespace plait {

enum class LogLevel { error, warning, info, debug };
using LogSink = std::function<void(LogLevel, std::string_view)>;

/// Installs the sink; an empty one (the default) drops everything. Thread-safe.
void set_log_sink(LogSink sink, LogLevel up_to);
void log(LogLevel level, std::string_view text);

}  // namespace plait
