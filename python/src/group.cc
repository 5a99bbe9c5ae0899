#include "group.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "bindings.h"
#include "collectives.h"
#include "contexts.h"
#include "plait/env.h"
#include "signals.h"

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
  if (!options.ok()) return options;
  if (timeout_s) options->timeout_s = *timeout_s;
  options->interrupted = interrupted_by_signal;
  return options;
}

Result<std::shared_ptr<RankGroup>> make_rank(std::unique_ptr<Group> group, int local_size) {
  Result<std::unique_ptr<Context>> context = make_context(local_size);
  if (!context.ok()) return context.status();
  auto rank = std::make_shared<RankGroup>();
  rank->context = context.take();
  rank->group = std::move(group);
  rank->group->record_to(&rank->context->recorder());
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

Result<std::shared_ptr<RankGroup>> join_as(const std::string& job, const std::string& name, int rank, int size, int local_size,
                                           std::optional<double> timeout_s) {
  if (size == 1) {
    Result<std::vector<std::shared_ptr<RankGroup>>> alone = thread_ranks(1, timeout_s);
    if (!alone.ok()) return alone.status();
    return alone->front();
  }
  Result<GroupOptions> options = options_of(timeout_s);
  if (!options.ok()) return options.status();
  Result<std::unique_ptr<Group>> group = join_shm_group(rank, size, job, name, *options);
  if (!group.ok()) return group.status();
  return make_rank(group.take(), local_size);
}

Result<std::shared_ptr<RankGroup>> join(const std::string& name, std::optional<double> timeout_s) {
  Result<Launch> launch = detect_launch();
  if (!launch.ok()) return launch.status();
  return join_as(launch->job, name, launch->rank, launch->size, launch->local_size, timeout_s);
}

Result<double> default_timeout() {
  Result<GroupOptions> options = group_options_from_env();
  if (!options.ok()) return options.status();
  return options->timeout_s;
}

template <size_t N, typename Kind>
nb::dict named(const std::array<int64_t, N>& values, Kind) {
  nb::dict dict;
  for (size_t i = 0; i < N; ++i) dict[nb::str(std::string(name(static_cast<Kind>(i))).c_str())] = values[i];
  return dict;
}

/// Name -> (begin_ns, end_ns, stage -> ns, counter -> value, ns per peer).
nb::dict calls_of(const RankGroup& ranks) {
  nb::dict dict;
  for (const auto& [operation, figures] : ranks.log.calls()) {
    dict[nb::str(operation.c_str())] =
        nb::make_tuple(figures.begin_ns, figures.end_ns, named(figures.stage_ns, Stage()), named(figures.counters, Counter()), figures.peer_wait_ns);
  }
  return dict;
}

}  // namespace

void bind_group(nb::module_& module) {
  note_main_thread();
  nb::class_<RankGroup>(module, "RankGroup")
      .def_prop_ro("rank", [](const RankGroup& self) { return self.group->rank(); })
      .def_prop_ro("size", [](const RankGroup& self) { return self.group->size(); })
      .def_prop_ro("engine", [](const RankGroup& self) { return std::string(name(self.group->engine())); })
      .def_prop_ro("window_bytes", [](const RankGroup& self) { return self.group->window_bytes(); })
      .def_prop_rw(
          "profiled", [](const RankGroup& self) { return self.profiled.load(); }, [](RankGroup& self, bool profiled) { self.profiled = profiled; })
      .def("calls", &calls_of)
      .def_prop_ro("failed", [](const RankGroup& self) { return !self.group->health().ok(); })
      .def("barrier", [](RankGroup& self, const std::string& stage) { without_lock([&] { return self.group->barrier(stage); }); })
      .def("exchange",
           [](RankGroup& self, const std::string& stage, const nb::bytes& payload) {
             const std::string own(payload.c_str(), payload.size());
             nb::list payloads;
             for (const std::string& peer : without_lock([&] { return exchange_bytes(*self.group, stage, own); })) {
               payloads.append(nb::bytes(peer.data(), peer.size()));
             }
             return payloads;
           })
      .def(
          "gather",
          [](RankGroup& self, const std::string& stage, const Input& own, const OptionalOutput& out) {
            const ConstTensorView own_view = view_of("own", own);
            const TensorView out_view = view_of("out", out);
            without_lock([&] { return gather_bytes(*self.group, stage, own_view.data, own_view.shape[0], out_view.data); });
          },
          nb::arg("stage"), nb::arg("own"), nb::arg("out").none())
      .def("abort",
           [](RankGroup& self, const std::string& why) { self.group->abort(Status(StatusCode::internal, why).at_rank(self.group->rank())); });
  module.def(
      "thread_ranks", [](int size, std::optional<double> timeout_s) { return without_lock([&] { return thread_ranks(size, timeout_s); }); },
      nb::arg("size"), nb::arg("timeout_s").none());
  module.def(
      "join", [](const std::string& name, std::optional<double> timeout_s) { return without_lock([&] { return join(name, timeout_s); }); },
      nb::arg("name"), nb::arg("timeout_s").none());
  module.def(
      "join_as",
      [](const std::string& job, const std::string& name, int rank, int size, int local_size, std::optional<double> timeout_s) {
        return without_lock([&] { return join_as(job, name, rank, size, local_size, timeout_s); });
      },
      nb::arg("job"), nb::arg("name"), nb::arg("rank"), nb::arg("size"), nb::arg("local_size"), nb::arg("timeout_s").none());
  module.def("default_timeout", [] { return without_lock(default_timeout); });
}

}  // namespace plait::python
