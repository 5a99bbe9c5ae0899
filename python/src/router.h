#pragma once
/// The auxiliary losses between autograd and the core.

#include "plait/router.h"

namespace plait::python {

/// Sets the coefficients of the losses to their gradients and returns the scale for backward: -1 where the gradients are negative, which
/// coefficients cannot be.
float set_loss_gradients(RouterConfig& config, float dload_balancing, float dz);

}  // namespace plait::python
