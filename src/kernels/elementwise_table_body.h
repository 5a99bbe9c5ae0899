// A tier's table. Included inside the anonymous namespace and target region of the tier's file, after its vec_*.h.

// Each uses the one before.
// clang-format off
#include "kernels/exp_log_body.h"
#include "kernels/elementwise_body.h"
#include "kernels/elementwise_activation_body.h"
// clang-format on

constexpr ElementwiseKernels table = {
    .load = load_row,
    .store = store_row,
    .exp = exp_row,
    .log = log_row,
    .sigmoid = sigmoid_row,
    .sum = sum_row,
    .max = max_row,
    .dot = dot_row,
    .scale = scale_row,
    .scale_add = scale_add_row,
    .add = add_row,
    .sum_rows = sum_rows,
    .activation_forward = activation_forward_row,
    .activation_backward = activation_backward_row,
};
