#include "plait/env.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <span>
#include <string_view>

#include "base/status_macros.h"

namespace plait {
namespace {

/// One knob: its name, what it does, how its text becomes a member of Env, and how the member is shown. Defaults are Env's initialisers.
struct Knob {
  const char* name;
  const char* text;
  const char* allowed;
  bool (*parse)(std::string_view value, Env& env);  ///< false where the value is malformed
  std::string (*show)(const Env& env);
};

template <typename Number>
bool parse_number(std::string_view value, Number low, Number high, Number& out) {
  Number number{};
  auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || !(number >= low && number <= high)) return false;
  out = number;
  return true;
}

bool parse_word(std::string_view value, std::string& out) {
  constexpr size_t max_length = 64;  // becomes part of socket names, which end at 107 bytes
  if (value.size() > max_length) return false;
  for (char c : value) {
    bool letter_or_digit = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!letter_or_digit && c != '.' && c != '_' && c != '-') return false;
  }
  out = value;
  return true;
}

bool parse_path(std::string_view value, std::string& out) {
  constexpr size_t max_length = 4095;  // the system's limit
  if (value.size() > max_length) return false;
  out = value;
  return true;
}

bool parse_log_level(std::string_view value, std::string& out) {
  for (std::string_view level : {"error", "warning", "info", "debug"}) {
    if (value == level) {
      out = value;
      return true;
    }
  }
  return false;
}

bool parse_flag(std::string_view value, bool& out) {
  if (value != "0" && value != "1") return false;
  out = value == "1";
  return true;
}

/// "48x64"
bool parse_tile(std::string_view value, Env& env) {
  constexpr int64_t largest = 1 << 20;  // far above any tile; keeps sizes made of it in range
  const size_t cross = value.find('x');
  return cross != std::string_view::npos && parse_number(value.substr(0, cross), int64_t{1}, largest, env.tile_rows) &&
         parse_number(value.substr(cross + 1), int64_t{1}, largest, env.tile_columns);
}

constexpr const char* word_rule = "up to 64 letters, digits, '.', '_' or '-'";

constexpr std::array knobs = {
    Knob{"PLAIT_KERNEL", "CPU tier whose kernels are used; empty chooses the fastest usable one. All tiers give the same bits.",
         "a tier's name: reference, avx2, avx512, avx512_bf16 or neon", [](std::string_view v, Env& e) { return parse_word(v, e.kernel); },
         [](const Env& e) { return e.kernel; }},
    Knob{"PLAIT_THREADS", "Threads of each rank, the calling one included; 0 takes the usable CPUs divided by the ranks of this machine.",
         "a whole number from 0 to 4096", [](std::string_view v, Env& e) { return parse_number(v, 0, 4096, e.threads); },
         [](const Env& e) { return fmt::format("{}", e.threads); }},
    Knob{"PLAIT_TILE", "Largest tile of a matrix product, to see that results do not depend on it; empty leaves it to the product's shape.",
         "ROWSxCOLUMNS, each from 1 to 1048576", [](std::string_view v, Env& e) { return parse_tile(v, e); },
         [](const Env& e) { return e.tile_rows == 0 ? std::string() : fmt::format("{}x{}", e.tile_rows, e.tile_columns); }},
    Knob{"PLAIT_TIMEOUT", "Seconds after which a wait on another rank ends with an error that names it.", "a number of seconds from 0.001 to 1000000",
         [](std::string_view v, Env& e) { return parse_number(v, 1e-3, 1e6, e.timeout_s); },
         [](const Env& e) { return fmt::format("{}", e.timeout_s); }},
    Knob{"PLAIT_SPIN_US", "Microseconds of busy waiting before a wait sleeps; 0 sleeps at once.", "a whole number from 0 to 1000000",
         [](std::string_view v, Env& e) { return parse_number(v, 0, 1'000'000, e.spin_us); },
         [](const Env& e) { return fmt::format("{}", e.spin_us); }},
    Knob{"PLAIT_HUGE_PAGES", "Asks the system for huge pages behind large buffers.", "0 or 1",
         [](std::string_view v, Env& e) { return parse_flag(v, e.huge_pages); }, [](const Env& e) { return std::string(e.huge_pages ? "1" : "0"); }},
    Knob{"PLAIT_LOG", "Log messages up to this level go to standard error; empty logs nothing.", "error, warning, info or debug",
         [](std::string_view v, Env& e) { return parse_log_level(v, e.log_level); }, [](const Env& e) { return e.log_level; }},
    Knob{"PLAIT_JOB", "Name of the job: ranks meet only ranks of the same job. Launchers set it.", word_rule,
         [](std::string_view v, Env& e) { return parse_word(v, e.job); }, [](const Env& e) { return e.job; }},
    Knob{"PLAIT_HOST_ID", "Name of this machine where several machines are simulated on one; empty takes the real identity.", word_rule,
         [](std::string_view v, Env& e) { return parse_word(v, e.host_id); }, [](const Env& e) { return e.host_id; }},
    Knob{"PLAIT_CACHE", "Folder in which the dispatcher auto keeps what it has measured; off keeps nothing, empty takes ~/.cache/plait.",
         "a path of at most 4095 bytes, or off", [](std::string_view v, Env& e) { return parse_path(v, e.cache); },
         [](const Env& e) { return e.cache; }},
    Knob{"PLAIT_DUMP", "File to which each rank of a layer call that fails appends its error and which tiles wait for which rank; empty writes none.",
         "a path of at most 4095 bytes", [](std::string_view v, Env& e) { return parse_path(v, e.dump); }, [](const Env& e) { return e.dump; }},
};

/// The variable's value; an empty one counts as not set.
std::string_view value_of(const Knob& knob) {
  const char* value = std::getenv(knob.name);
  return value != nullptr ? value : "";
}

Status apply(const Knob& knob, Env& env) {
  std::string_view value = value_of(knob);
  if (value.empty() || knob.parse(value, env)) return {};
  return Status::invalid_argument(fmt::format("{} is '{}'; allowed: {} (or unset it)", knob.name, value, knob.allowed));
}

}  // namespace

std::string Env::cache_folder() const {
  if (!cache.empty()) return cache == "off" ? "" : cache;
  auto below = [](const char* variable, const char* folder) {
    const char* base = std::getenv(variable);
    return base != nullptr && *base != '\0' ? std::string(base) + folder : std::string();
  };
  const std::string folder = below("XDG_CACHE_HOME", "/plait");
  return !folder.empty() ? folder : below("HOME", "/.cache/plait");
}

Result<Env> Env::read() {
  Env env;
  for (const Knob& knob : knobs) PLAIT_RETURN_IF_ERROR(apply(knob, env));
  return env;
}

std::vector<EnvKnob> env_knobs() {
  std::vector<EnvKnob> list;
  for (const Knob& knob : knobs) {
    Env env;
    std::string default_value = knob.show(env);
    bool valid = apply(knob, env).ok();
    list.push_back({.name = knob.name,
                    .default_value = default_value,
                    .text = fmt::format("{} Allowed: {}.", knob.text, knob.allowed),
                    .current = valid ? knob.show(env) : fmt::format("{} (malformed)", value_of(knob))});
  }
  return list;
}

}  // namespace plait
