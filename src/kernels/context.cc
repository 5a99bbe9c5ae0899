#include "plait/context.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/arena.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "kernels/kernel_set.h"
#include "plait/counters.h"
#include "plait/env.h"

namespace plait {
namespace {

constexpr int max_threads = 4096;  // far above any machine; catches a mistyped number before it becomes that many threads

Result<int> choose_threads(int asked) {
  if (asked < 0 || asked > max_threads) {
    return Status::invalid_argument(fmt::format("threads = {}: must lie in 0..{} (0 = all usable CPUs)", asked, max_threads));
  }
  if (asked > 0) return asked;
  PLAIT_ASSIGN_OR_RETURN(Env env, Env::read());
  return env.threads > 0 ? std::min(env.threads, max_threads) : usable_cpus();
}

Result<TileShape> choose_tile(const TileShape& asked) {
  if (asked.rows < 0 || asked.columns < 0) {
    return Status::invalid_argument(fmt::format("tile = {} x {}: must not be negative (0 = by shape)", asked.rows, asked.columns));
  }
  if (asked.rows > 0 || asked.columns > 0) return asked;
  PLAIT_ASSIGN_OR_RETURN(Env env, Env::read());
  return TileShape{env.tile_rows, env.tile_columns};
}

}  // namespace

Context::Context() = default;
Context::~Context() = default;

Result<std::unique_ptr<Context>> Context::create(const ContextOptions& options) {
  PLAIT_ASSIGN_OR_RETURN(int num_threads, choose_threads(options.threads));
  PLAIT_ASSIGN_OR_RETURN(Tier chosen, options.kernel.empty() ? default_tier() : kernels::usable_tier(options.kernel, "kernel = " + options.kernel));
  PLAIT_ASSIGN_OR_RETURN(const TileShape tile, choose_tile(options.tile));
  std::unique_ptr<Context> context(new Context());
  context->pool_ = std::make_unique<ThreadPool>(num_threads);
  context->arena_ = std::make_unique<Arena>();
  context->recorder_ = std::make_unique<Recorder>();
  context->kernels_ = kernels::kernel_set(chosen);
  context->tile_shape_ = tile;
  return context;
}

int Context::threads() const { return pool_->threads(); }
Tier Context::tier() const { return kernels_->tier; }

Result<Tensor> Context::empty(DType dtype, std::initializer_list<int64_t> shape) const {
  TensorView view(nullptr, dtype, shape);
  PLAIT_ASSIGN_OR_RETURN(Buffer buffer, arena_->take(view.num_bytes()));
  view.data = buffer.get();
  return Tensor{std::move(buffer), view};
}

Result<Tensor> Context::zeros(DType dtype, std::initializer_list<int64_t> shape) const {
  PLAIT_ASSIGN_OR_RETURN(Tensor tensor, empty(dtype, shape));
  std::fill_n(tensor.view.data, tensor.view.num_bytes(), std::byte{0});
  return tensor;
}

Result<Buffer> Context::scratch(int64_t bytes) const { return arena_->take(bytes); }

}  // namespace plait
