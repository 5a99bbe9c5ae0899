#pragma once
/// A Status of the core as a Python exception.

#include "plait/status.h"

namespace plait::python {

/// Raises plait.Error, or the subclass that fits the code. The interpreter lock must be held.
[[noreturn]] void raise(const Status& status);

inline void check(const Status& status) {
  if (!status.ok()) raise(status);
}

}  // namespace plait::python
