#pragma once
/// A group with what one rank computes with, kept alive by everything that holds its memory.

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "calls.h"
#include "contexts.h"
#include "plait/context.h"
#include "plait/group.h"

namespace plait::python {

/// Members are destroyed in reverse: the group before the context that it counts into.
struct RankGroup {
  std::unique_ptr<Context> context;
  std::unique_ptr<Group> group;
  CallLog log;
  std::atomic<bool> profiled = false;  ///< PyTorch's profiler sees the stages of the next calls
  std::mutex call;                     ///< held by an operator's forward or backward: a rank makes one call at a time, whatever thread asks
};

/// Runs body(), a call of `operation` together with the group's other ranks, without the interpreter lock, and returns the value of its
/// Result. The log has its figures then.
template <typename Body>
auto call_together(RankGroup& ranks, const std::string& operation, Body&& body) {
  return without_lock([&] {
    std::lock_guard lock(ranks.call);
    Recorder& recorder = ranks.context->recorder();
    recorder.reset();
    const int64_t begin_ns = now_ns();
    const ProfiledCall profiled(recorder, ranks.profiled);
    auto result = body();
    ranks.log.add(operation, begin_ns, recorder);
    return result;
  });
}

}  // namespace plait::python
