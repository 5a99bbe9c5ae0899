#include "calls.h"

#include <algorithm>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

namespace nb = nanobind;

namespace plait::python {

void CallLog::add(const std::string& operation, int64_t begin_ns, const Recorder& recorder) {
  CallFigures figures{.begin_ns = begin_ns, .end_ns = now_ns(), .peer_wait_ns = recorder.peer_wait_ns()};
  for (int stage = 0; stage < num_stages; ++stage) figures.stage_ns[static_cast<size_t>(stage)] = recorder.stage_ns(static_cast<Stage>(stage));
  for (int counter = 0; counter < num_counters; ++counter) {
    figures.counters[static_cast<size_t>(counter)] = recorder.value(static_cast<Counter>(counter));
  }
  std::lock_guard lock(mutex_);
  calls_[operation] = std::move(figures);
}

std::map<std::string, CallFigures> CallLog::calls() const {
  std::lock_guard lock(mutex_);
  return calls_;
}

void ProfiledZones::begin(Stage stage) {
  nb::gil_scoped_acquire lock;
  try {
    nb::object event = nb::module_::import_("torch.profiler").attr("record_function")("plait::" + std::string(name(stage)));
    event.attr("__enter__")();
    open_.push_back(event.release().ptr());
  } catch (...) {  // an event that is missing is no reason to fail
    open_.push_back(nullptr);
  }
}

void ProfiledZones::end(Stage) {
  if (open_.empty()) return;
  nb::gil_scoped_acquire lock;
  nb::object event = nb::steal(static_cast<PyObject*>(open_.back()));
  open_.pop_back();
  if (!event.is_valid()) return;
  try {
    event.attr("__exit__")(nb::none(), nb::none(), nb::none());
  } catch (...) {
    return;
  }
}

}  // namespace plait::python
