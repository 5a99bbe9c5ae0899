#include "group.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "contexts.h"
#include "plait/env.h"

namespace nb = nanobind;

namespace plait::python {
namespace {

/// PLAIT_THREADS, or this rank's share of the usable CPUs.
Result<std::unique_ptr<Context>> make_context(int local_size) {
  Result<Env> env = Env::read();
  if (!env.ok()) return env.status();
  return Context::create({.threads = env->threads > 0 ? env->threads : std::max(1, usable_cpus() / local_size)});
}

Result<GroupOptions> options_of(std::optional<double> timeout_s) {
  Result<GroupOptions> options = group_options_from_env();
  if (options.ok() && timeout_s) options->timeout_s = *timeout_s;
  return options;
}

Result<std::shared_ptr<RankGroup>> make_rank(std::unique_ptr<Group> group, int local_size) {
  Result<std::unique_ptr<Context>> context = make_context(local_size);
  if (!context.ok()) return context.status();
  auto rank = std::make_shared<RankGroup>();
  rank->context = context.take();
  rank->group = std::move(group);
  return rank;
}

Result<std::vector<std::shared_ptr<RankGroup>>> thread_ranks(int size, std::optional<double> timeout_s) {
  Result<GroupOptions> options = options_of(timeout_s);
  if (!options.ok()) return options.status();
  Result<std::vector<std::unique_ptr<Group>>> groups = make_thread_groups(size, *options);
  if (!groups.ok()) return groups.status();
  std::vector<std::shared_ptr<RankGroup>> ranks;
  for (std::unique_ptr<Group>& group : *groups) {
    Result<std::shared_ptr<RankGroup>> rank = make_rank(std::move(group), size);
    if (!rank.ok()) return rank.status();
    ranks.push_back(rank.take());
  }
  return ranks;
}

Result<std::shared_ptr<RankGroup>> join(const std::string& name, std::optional<double> timeout_s) {
  Result<Launch> launch = detect_launch();
  if (!launch.ok()) return launch.status();
  if (launch->size == 1) {
    Result<std::vector<std::shared_ptr<RankGroup>>> alone = thread_ranks(1, timeout_s);
    if (!alone.ok()) return alone.status();
    return alone->front();
  }
  Result<GroupOptions> options = options_of(timeout_s);
  if (!options.ok()) return options.status();
  Result<std::unique_ptr<Group>> group = join_shm_group(launch->rank, launch->size, launch->job, name, *options);
  if (!group.ok()) return group.status();
  return make_rank(group.take(), launch->local_size);
}

}  // namespace

void bind_group(nb::module_& module) {
  nb::class_<RankGroup>(module, "RankGroup")
      .def_prop_ro("rank", [](const RankGroup& self) { return self.group->rank(); })
      .def_prop_ro("size", [](const RankGroup& self) { return self.group->size(); })
      .def_prop_ro("engine", [](const RankGroup& self) { return std::string(name(self.group->engine())); })
      .def_prop_ro("window_bytes", [](const RankGroup& self) { return self.group->window_bytes(); })
      .def("barrier", [](RankGroup& self, const std::string& stage) { without_lock([&] { return self.group->barrier(stage); }); })
      .def("abort",
           [](RankGroup& self, const std::string& why) { self.group->abort(Status(StatusCode::internal, why).at_rank(self.group->rank())); });
  module.def(
      "thread_ranks", [](int size, std::optional<double> timeout_s) { return without_lock([&] { return thread_ranks(size, timeout_s); }); },
      nb::arg("size"), nb::arg("timeout_s").none());
  module.def(
      "join", [](const std::string& name, std::optional<double> timeout_s) { return without_lock([&] { return join(name, timeout_s); }); },
      nb::arg("name"), nb::arg("timeout_s").none());
}

}  // namespace plait::python
