#include "observe/probe.h"

#include <algorithm>
#include <cstring>

#include "base/cpu.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "plait/counters.h"

namespace plait {
namespace {

constexpr double burst_ns = 1e6;                       // long against starting the threads, short against a round of a benchmark
constexpr int64_t most_read_bytes = int64_t{1} << 28;  // eight times the largest cache this was written on
constexpr int64_t least_read_bytes = int64_t{1} << 24;
constexpr int rounds = 12;

}  // namespace

MachineProbe::MachineProbe(const Context& context)
    : context_(&context), f32_(probe::f32_loop(context.tier())), bf16_(probe::bf16_loop(context.tier())), arena_(std::make_unique<Arena>()) {}

Result<MachineProbe> MachineProbe::create(const Context& context) {
  MachineProbe p(context);
  p.f32_iterations_ = p.calibrate(p.f32_);
  p.bf16_iterations_ = p.calibrate(p.bf16_);
  // Equal parts of whole cache-line pairs for the threads, never more than a quarter of what may still be allocated.
  int64_t wanted = std::clamp(available_memory_bytes("") / 4, least_read_bytes, most_read_bytes);
  int64_t part = wanted / context.threads() / 128 * 128;
  p.read_bytes_ = part * context.threads();
  PLAIT_ASSIGN_OR_RETURN(p.memory_, p.arena_->take(p.read_bytes_));
  std::byte* memory = p.memory_.get();
  context.pool().parallel_for(context.threads(), [=](int64_t i, int) { std::memset(memory + i * part, 0x5a, static_cast<size_t>(part)); });
  return p;
}

double MachineProbe::run_ns(const probe::FlopsLoop& loop, int64_t iterations) const {
  volatile float sink = 0;
  int64_t begin = now_ns();
  context_->pool().parallel_for(context_->threads(), [&](int64_t, int worker) {
    float value = loop.run(iterations);
    if (worker == 0) sink = value;
  });
  return static_cast<double>(now_ns() - begin);
}

int64_t MachineProbe::calibrate(const probe::FlopsLoop& loop) const {
  int64_t iterations = 1000;
  while (run_ns(loop, iterations) < burst_ns) iterations *= 2;
  return iterations;
}

void MachineProbe::burst_flops(DType dtype) {
  bool bf16 = dtype == DType::bf16;
  const probe::FlopsLoop& loop = bf16 ? bf16_ : f32_;
  int64_t iterations = bf16 ? bf16_iterations_ : f32_iterations_;
  double flops = loop.flops_per_iteration * static_cast<double>(iterations * context_->threads());
  double& best = bf16 ? best_.bf16_gflops : best_.f32_gflops;
  best = std::max(best, flops / run_ns(loop, iterations));
}

void MachineProbe::burst_read() {
  int64_t part = read_bytes_ / context_->threads();
  const std::byte* memory = memory_.get();
  volatile uint64_t sink = 0;
  int64_t begin = now_ns();
  context_->pool().parallel_for(context_->threads(), [&](int64_t i, int worker) {
    uint64_t value = probe::read_bytes(memory + i * part, part);
    if (worker == 0) sink = value;
  });
  best_.read_gbps = std::max(best_.read_gbps, static_cast<double>(read_bytes_) / static_cast<double>(now_ns() - begin));
}

Result<Probe> probe_machine(const Context& context) {
  PLAIT_ASSIGN_OR_RETURN(MachineProbe p, MachineProbe::create(context));
  for (int round = 0; round < rounds; ++round) {
    p.burst_flops(DType::f32);
    p.burst_flops(DType::bf16);
    p.burst_read();
  }
  return p.best();
}

}  // namespace plait
