#pragma once
/// Early return on failure, for functions that return Status or Result.

#include "plait/status.h"

#define PLAIT_CONCAT_INNER(a, b) a##b
#define PLAIT_CONCAT(a, b) PLAIT_CONCAT_INNER(a, b)

/// PLAIT_RETURN_IF_ERROR(call()): returns the Status of `call()` unless it is ok.
#define PLAIT_RETURN_IF_ERROR(expression)                                                     \
  do {                                                                                        \
    if (::plait::Status plait_status = (expression); !plait_status.ok()) return plait_status; \
  } while (false)

/// PLAIT_ASSIGN_OR_RETURN(auto x, call()): x is the value of the Result, or its Status is returned.
#define PLAIT_ASSIGN_OR_RETURN(declaration, expression)                                                   \
  auto PLAIT_CONCAT(plait_result_, __LINE__) = (expression);                                              \
  if (!PLAIT_CONCAT(plait_result_, __LINE__).ok()) return PLAIT_CONCAT(plait_result_, __LINE__).status(); \
  declaration = PLAIT_CONCAT(plait_result_, __LINE__).take()  // NOLINT: a declaration takes no parentheses
