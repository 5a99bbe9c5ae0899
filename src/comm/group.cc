#include "plait/group.h"

#include <fmt/format.h>

#include <array>

#include "base/status_macros.h"
#include "plait/env.h"

namespace plait {
namespace {

constexpr std::array engine_names = {std::string_view("threads"), std::string_view("shm"), std::string_view("ucx")};

}  // namespace

std::string_view name(Engine engine) { return engine_names[static_cast<size_t>(engine)]; }

Result<Engine> parse_engine(std::string_view text) {
  for (size_t i = 0; i < engine_names.size(); ++i) {
    if (engine_names[i] == text) return static_cast<Engine>(i);
  }
  return Status::invalid_argument(fmt::format("engine '{}': engines are {}", text, fmt::join(engine_names, ", ")));
}

Result<GroupOptions> group_options_from_env() {
  PLAIT_ASSIGN_OR_RETURN(const Env env, Env::read());
  return GroupOptions{env.timeout_s, env.spin_us};
}

}  // namespace plait
