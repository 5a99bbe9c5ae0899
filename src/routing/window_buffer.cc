#include "routing/window_buffer.h"

#include <memory>

#include "base/status_macros.h"

namespace plait {

Result<WindowBuffer> WindowBuffer::open(const Context& context, Group& group, int64_t bytes) {
  WindowBuffer buffer;
  if (group.size() == 1) {
    PLAIT_ASSIGN_OR_RETURN(buffer.memory_, context.scratch(bytes));
    return buffer;
  }
  PLAIT_ASSIGN_OR_RETURN(buffer.region_, group.allocate(bytes));
  auto hold = std::make_shared<Region>(buffer.region_);
  buffer.memory_ = Buffer(hold, hold->data());
  return buffer;
}

Tensor WindowBuffer::tensor(int64_t offset, DType dtype, std::initializer_list<int64_t> shape) const {
  return {memory_, TensorView(memory_.get() + offset, dtype, shape)};
}

}  // namespace plait
