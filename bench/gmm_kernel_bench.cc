// The grouped products alone, against the peak probed in the same process: forward ([K,N] weights), dX (the same weights read as
// [N,K]) and dW, by rows per expert. One thread is timed by its CPU time, several by the wall clock; the best of the repetitions counts.
//
//   gmm_kernel_bench --benchmark_enable_random_interleaving=true --benchmark_filter='bf16/2048x512/.*rows:128$'
//
// PLAIT_THREADS (default 1 here) and PLAIT_KERNEL choose threads and tier.

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "kernels/grouped_gemm.h"
#include "observe/bench_gmm.h"
#include "plait/context.h"

namespace plait {
namespace {

struct Shape {
  int64_t hidden, intermediate, experts;
};
constexpr Shape shapes[] = {{2048, 512, 8}, {1024, 512, 16}, {4096, 1536, 4}};
constexpr int64_t rows_per_expert[] = {1, 4, 8, 16, 32, 128, 256};
enum class Op { forward, dx, dw };
constexpr const char* op_names[] = {"forward", "dx", "dw"};

struct Peak {
  double gflops;
  double read_gbps;
};

/// Random values, never zeros: memory treats those differently.
Tensor random_values(const Context& context, DType type, std::initializer_list<int64_t> shape) {
  Tensor t = context.empty(type, shape).take();
  uint64_t state = 1;
  for (int64_t i = 0; i < t.view.num_elements(); ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const auto bits = static_cast<uint32_t>(state >> 41 | 0x3f000000U);  // 0.5 to 2
    if (type == DType::f32)
      t.as<uint32_t>()[i] = bits;
    else
      t.as<uint16_t>()[i] = static_cast<uint16_t>(type == DType::bf16 ? bits >> 16 : 0x3800U | (bits >> 8 & 0x3ffU));
  }
  return t;
}

double seconds_now(bool one_thread) {
  timespec t{};
  clock_gettime(one_thread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

void run(benchmark::State& state, const Context& context, const Peak& peak, DType type, const Shape& shape, Op op, int64_t rows) {
  const int64_t k = shape.hidden, n = 2 * shape.intermediate, m = rows * shape.experts, bytes = size_of(type);
  const std::vector<int64_t> counts(static_cast<size_t>(shape.experts), rows);
  Tensor x = random_values(context, type, {m, k}), dy = random_values(context, type, {m, n});
  Tensor w = random_values(context, type, {shape.experts, k, n});
  kernels::MGroupedGemm forward{};
  forward.in = forward.out = type;
  forward.k = k;
  forward.n = n;
  forward.counts = counts;
  forward.x = {x.view.data, k * bytes, nullptr};
  forward.weights = {w.view.data, k * n, n, 1};
  forward.y = {dy.view.data, n * bytes, nullptr};
  kernels::MGroupedGemm dx = forward;
  std::swap(dx.k, dx.n);
  dx.x = {dy.view.data, n * bytes, nullptr};
  dx.weights = {w.view.data, k * n, 1, n};
  dx.y = {x.view.data, k * bytes, nullptr};
  kernels::KGroupedGemm dw{};
  dw.in = dw.out = type;
  dw.k = k;
  dw.n = n;
  dw.counts = counts;
  dw.x = forward.x;
  dw.dy = {dy.view.data, n * bytes, nullptr};
  dw.dw = w.view.data;
  dw.dw_group_stride = k * n;
  dw.dw_k_stride = n;

  const bool one_thread = context.threads() == 1;
  double best = 1e30;
  for (auto _ : state) {
    double begin = seconds_now(one_thread);
    Status status = op == Op::dw ? k_grouped_gemm(context, dw) : m_grouped_gemm(context, op == Op::dx ? dx : forward);
    double seconds = seconds_now(one_thread) - begin;
    if (!status.ok()) return state.SkipWithError(status.to_string().c_str());
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(n);
  const double traffic = static_cast<double>((shape.experts * k * n + m * (k + n)) * bytes);
  const double limit = std::min(peak.gflops, flops / traffic * peak.read_gbps);
  state.counters["GF/s"] = flops / best * 1e-9;
  state.counters["%peak"] = 100 * flops / best * 1e-9 / peak.gflops;
  state.counters["%limit"] = 100 * flops / best * 1e-9 / limit;
  state.counters["GB/s"] = traffic / best * 1e-9;
}

int run_all(int argc, char** argv) {
  setenv("PLAIT_THREADS", "1", 0);
  auto context = Context::create();
  if (!context.ok()) {
    std::fprintf(stderr, "%s\n", context.status().to_string().c_str());
    return 2;
  }
  auto probe = probe_machine(**context);
  if (!probe.ok()) return 2;
  const bool dots = (*context)->tier() == Tier::avx512_bf16;
  std::printf("tier %s, %d thread(s), probed: f32 %.1f GF/s, bf16 %.1f GF/s, read %.1f GB/s\n", std::string(name((*context)->tier())).c_str(),
              (*context)->threads(), probe->f32_gflops, probe->bf16_gflops, probe->read_gbps);
  for (DType type : {DType::bf16, DType::f32}) {
    const Peak peak{type == DType::bf16 && dots ? probe->bf16_gflops : probe->f32_gflops, probe->read_gbps};
    for (const Shape& shape : shapes) {
      for (Op op : {Op::forward, Op::dx, Op::dw}) {
        for (int64_t rows : rows_per_expert) {
          std::string label = fmt::format("{}/{}x{}/{}/rows:{}", name(type), shape.hidden, shape.intermediate, op_names[static_cast<int>(op)], rows);
          benchmark::RegisterBenchmark(
              label.c_str(), [&context, peak, type, shape, op, rows](benchmark::State& state) { run(state, **context, peak, type, shape, op, rows); })
              ->UseManualTime()
              ->MinTime(0.2)
              ->Unit(benchmark::kMillisecond);
        }
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace plait

int main(int argc, char** argv) { return plait::run_all(argc, argv); }
