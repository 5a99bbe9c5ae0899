#include "train/adamw.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_set.h"

namespace plait::train {
namespace {

constexpr int64_t block_size = 4096;

int64_t num_blocks(int64_t n) { return (n + block_size - 1) / block_size; }

/// What the gradients of a stretch of a parameter add to the report.
struct Partial {
  double squares = 0;
  int64_t nonfinite = 0;
};

Partial sum_stretch(const Context& context, const float* gradient, int64_t n, float scale) {
  std::vector<Partial> blocks(static_cast<size_t>(num_blocks(n)));
  context.pool().parallel_for(num_blocks(n), [&](int64_t task, int) {
    Partial& block = blocks[static_cast<size_t>(task)];
    for (int64_t i = task * block_size; i < std::min(n, (task + 1) * block_size); ++i) {
      auto g = static_cast<double>(gradient[i] * scale);
      block.squares += g * g;
      block.nonfinite += std::isfinite(g) ? 0 : 1;
    }
  });
  Partial sum;
  for (const Partial& block : blocks) {
    sum.squares += block.squares;
    sum.nonfinite += block.nonfinite;
  }
  return sum;
}

}  // namespace

Result<AdamW> AdamW::create(const Context& context, const ParameterSet& set, const AdamWOptions& options) {
  AdamW optimizer;
  optimizer.options_ = options;
  for (const Parameter& item : set.items()) {
    if (!item.gradient.defined()) continue;
    int64_t n = item.gradient.num_elements();
    State state;
    PLAIT_ASSIGN_OR_RETURN(state.master, context.empty(DType::f32, {n}));
    PLAIT_ASSIGN_OR_RETURN(state.m, context.zeros(DType::f32, {n}));
    PLAIT_ASSIGN_OR_RETURN(state.v, context.zeros(DType::f32, {n}));
    const std::byte* value = item.value.view.data;
    DType dtype = item.spec.dtype;
    context.pool().parallel_for(num_blocks(n), [&](int64_t task, int) {
      int64_t begin = task * block_size, count = std::min(block_size, n - begin);
      context.kernels().elementwise->load(dtype, value + begin * size_of(dtype), state.master.as<float>() + begin, count);
    });
    optimizer.states_.push_back(std::move(state));
  }
  return optimizer;
}

void AdamW::step(const Context& context, const ParameterSet& set, float gradient_scale) {
  beta1_power_ *= static_cast<double>(options_.beta1);
  beta2_power_ *= static_cast<double>(options_.beta2);
  auto correction1 = static_cast<float>(1.0 - beta1_power_), correction2 = static_cast<float>(1.0 - beta2_power_);
  AdamWOptions o = options_;
  size_t next = 0;
  for (const Parameter& item : set.items()) {
    if (!item.gradient.defined()) continue;
    const State& state = states_[next++];
    const float* gradient = item.gradient.as<float>();
    float *master = state.master.as<float>(), *m = state.m.as<float>(), *v = state.v.as<float>();
    int64_t n = item.gradient.num_elements();
    DType dtype = item.spec.dtype;
    context.pool().parallel_for(num_blocks(n), [&](int64_t task, int) {
      int64_t begin = task * block_size, end = std::min(n, begin + block_size);
      for (int64_t i = begin; i < end; ++i) {
        float g = gradient[i] * gradient_scale;
        m[i] = o.beta1 * m[i] + (1.0F - o.beta1) * g;
        v[i] = o.beta2 * v[i] + (1.0F - o.beta2) * (g * g);
        float update = (m[i] / correction1) / (std::sqrt(v[i] / correction2) + o.epsilon);
        master[i] -= o.learning_rate * (update + o.weight_decay * master[i]);
      }
      context.kernels().elementwise->store(dtype, master + begin, item.value.view.data + begin * size_of(dtype), end - begin);
    });
  }
}

Result<GradientReport> gradient_report(const Context& context, Group& group, const ParameterSet& set, float gradient_scale) {
  std::vector<Partial> replicated, own;
  std::vector<int64_t> experts;  // per sharded parameter, experts held here
  for (const Parameter& item : set.items()) {
    if (!item.gradient.defined()) continue;
    const float* gradient = item.gradient.as<float>();
    int64_t n = item.gradient.num_elements();
    if (!item.spec.sharded) {
      replicated.push_back(sum_stretch(context, gradient, n, gradient_scale));
      continue;
    }
    int64_t e = item.spec.shape[0];
    experts.push_back(e);
    for (int64_t j = 0; j < e; ++j) own.push_back(sum_stretch(context, gradient + j * (n / e), n / e, gradient_scale));
  }
  PLAIT_ASSIGN_OR_RETURN(Exchange all, group.exchange("gradient norm", std::as_bytes(std::span(own))));
  GradientReport report;
  double squares = 0;
  auto add = [&](const Partial& partial) {
    squares += partial.squares;
    report.nonfinite += partial.nonfinite;
  };
  for (const Partial& partial : replicated) add(partial);
  int64_t begin = 0;
  for (int64_t e : experts) {
    for (int rank = 0; rank < group.size(); ++rank) {
      for (int64_t j = begin; j < begin + e; ++j) {
        Partial partial;
        std::memcpy(&partial, all.payload(rank).data() + static_cast<size_t>(j) * sizeof partial, sizeof partial);
        add(partial);
      }
    }
    begin += e;
  }
  report.norm = std::sqrt(squares);
  return report;
}

}  // namespace plait::train
