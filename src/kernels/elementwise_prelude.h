#pragma once
/// Everything that the vec_*.h and *_body.h files need, to be included before a tier's target region: code of the standard library
/// must not be compiled for an instruction set that the machine may lack.

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/elementwise.h"
#include "kernels/elementwise_tiers.h"
#include "kernels/exp_log_constants.h"

/// Vector values must stay in registers, whatever the compiler thinks of a function's size.
#define PLAIT_LANES_INLINE [[gnu::always_inline]] inline
