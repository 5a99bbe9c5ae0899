#include "signals.h"

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace plait::python {
namespace {

unsigned long main_thread = 0;

}  // namespace

void note_main_thread() { main_thread = nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr("ident")); }

bool interrupted_by_signal() {
  if (PyThread_get_thread_ident() != main_thread) return false;  // Python handles signals there alone
  nb::gil_scoped_acquire lock;
  return PyErr_CheckSignals() != 0;
}

}  // namespace plait::python
