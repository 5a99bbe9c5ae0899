// The definition of the elementwise functions: the shared bodies over 16 plain floats, compiled for the baseline instruction set.

#include "kernels/elementwise_prelude.h"
#include "kernels/gemm_target.h"

namespace plait::kernels {
namespace {

// The second uses the first.
// clang-format off
#include "kernels/vec_scalar.h"
#include "kernels/elementwise_table_body.h"
// clang-format on

}  // namespace

const ElementwiseKernels* elementwise_reference() { return &table; }

}  // namespace plait::kernels
