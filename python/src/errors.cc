#include "errors.h"

#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

namespace plait::python {

void raise(const Status& status) {
  nanobind::object make_error = nanobind::module_::import_("plait._errors").attr("make_error");
  nanobind::object error = make_error(std::string(name(status.code())), status.message(), status.rank(), status.stage(), status.expert());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nanobind::python_error();
}

}  // namespace plait::python
