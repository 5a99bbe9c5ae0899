#include "routing/window_buffer.h"

#include <memory>
#include <utility>

#include "base/status_macros.h"

namespace plait {

WindowBuffer::WindowBuffer(Region region) : region_(std::move(region)) {
  auto hold = std::make_shared<Region>(region_);
  memory_ = Buffer(hold, hold->data());
}

Result<WindowBuffer> WindowBuffer::open(const Context& context, Group& group, int64_t bytes) {
  if (group.size() == 1) {
    WindowBuffer buffer;
    PLAIT_ASSIGN_OR_RETURN(buffer.memory_, context.scratch(bytes));
    return buffer;
  }
  PLAIT_ASSIGN_OR_RETURN(Region region, group.allocate(bytes));
  return WindowBuffer(std::move(region));
}

std::optional<WindowBuffer> WindowBuffer::find(const Group& group, const ConstTensorView& rows) {
  if (group.size() == 1 || !rows.is_contiguous()) return std::nullopt;
  std::optional<Region> region = group.find_region(rows.data, rows.num_bytes());
  if (!region) return std::nullopt;
  return WindowBuffer(*std::move(region));
}

Tensor WindowBuffer::tensor(int64_t offset, DType dtype, std::initializer_list<int64_t> shape) const {
  return {memory_, TensorView(memory_.get() + offset, dtype, shape)};
}

}  // namespace plait
