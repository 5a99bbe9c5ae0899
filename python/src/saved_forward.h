#pragma once
/// What backward needs of a forward. Python holds it as an int64 array of one element, the id: it lives as long as that memory, in
/// whatever tensor or graph, and gives window memory back when the last reference goes.

#include <cstdint>
#include <memory>
#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "errors.h"
#include "group.h"

namespace plait::python {

struct SavedForward {
  explicit SavedForward(std::shared_ptr<RankGroup> ranks) : group(std::move(ranks)) {}
  virtual ~SavedForward() = default;
  SavedForward(const SavedForward&) = delete;
  SavedForward& operator=(const SavedForward&) = delete;

  int64_t id = 0;
  std::shared_ptr<RankGroup> group;  ///< outlives what derived classes hold: their memory is the group's
};

using Handle = nanobind::ndarray<int64_t, nanobind::shape<1>, nanobind::device::cpu>;

Handle handle_of(std::unique_ptr<SavedForward> saved);
/// Null where the forward's memory has gone.
SavedForward* find_forward(int64_t id);

/// The forward that `handle` was made for. Error: it is gone, or one of another operator; `operation` is for the message.
template <typename Kind>
Kind& forward_of(const std::string& operation, const Handle& handle) {
  auto* saved = dynamic_cast<Kind*>(find_forward(*handle.data()));
  if (saved != nullptr) return *saved;
  raise(Status::invalid_argument(operation + " backward: the forward's state is gone; its tensor was copied, and the original is no longer there"));
}

}  // namespace plait::python
