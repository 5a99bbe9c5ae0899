#include "bindings.h"

NB_MODULE(_core, module) {
  nanobind::set_leak_warnings(false);  // what a graph keeps of a forward may outlive the interpreter
  module.doc() = "Plait's core over DLPack arrays. Internal: use plait and plait.ops.";
  plait::python::bind_info(module);
  plait::python::bind_grouped_matmul(module);
  plait::python::bind_permute(module);
  plait::python::bind_activation(module);
  plait::python::bind_router(module);
  plait::python::bind_group(module);
  plait::python::bind_alltoallv_gmm(module);
  plait::python::bind_layer(module);
  plait::python::bind_fused_expert(module);
}
