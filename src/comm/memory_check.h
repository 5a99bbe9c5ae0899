#pragma once
/// What engines check and do before they reserve memory, so that too little is an error and not a signal or the out-of-memory killer.

#include <cstdint>
#include <string>

#include "plait/status.h"

namespace plait::comm {

/// resource_exhausted where `bytes` exceed the memory that is left to this process.
Status check_available(int64_t bytes);
/// The error of a reservation of `bytes` that the system refused with `error` (an errno); `limit` says where it comes from.
Status reservation_failed(int64_t bytes, int error, const std::string& limit);
/// "3.2 GiB", "512 KiB", "17 bytes".
std::string bytes_text(int64_t bytes);

}  // namespace plait::comm
