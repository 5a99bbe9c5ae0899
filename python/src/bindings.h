#pragma once
/// The parts of the module plait._core. Arrays are given by the caller, results too, so that the core never allocates what Python keeps.

#include <nanobind/nanobind.h>

namespace plait::python {

void bind_info(nanobind::module_& module);
void bind_grouped_matmul(nanobind::module_& module);
void bind_permute(nanobind::module_& module);
void bind_activation(nanobind::module_& module);
void bind_router(nanobind::module_& module);
void bind_group(nanobind::module_& module);
void bind_layer(nanobind::module_& module);

}  // namespace plait::python
