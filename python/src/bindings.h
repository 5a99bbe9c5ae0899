#pragma once
/// The parts of the module plait._core. Arrays are given by the caller, results too, except where the core
/// decides where they lie: then the array owns memory of the group.

#include <nanobind/nanobind.h>

namespace plait::python {

void bind_info(nanobind::module_& module);
void bind_grouped_matmul(nanobind::module_& module);
void bind_permute(nanobind::module_& module);
void bind_activation(nanobind::module_& module);
void bind_router(nanobind::module_& module);
void bind_group(nanobind::module_& module);
void bind_alltoallv_gmm(nanobind::module_& module);
void bind_fused_expert(nanobind::module_& module);
void bind_layer(nanobind::module_& module);

}  // namespace plait::python
