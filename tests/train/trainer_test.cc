#include "train/trainer.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>

#include "base/arena.h"
#include "support/test_tensors.h"
#include "train_support.h"

namespace plait::train {
namespace {

std::vector<double> losses_of(const std::vector<TrainStep>& steps) {
  std::vector<double> losses;
  for (const TrainStep& step : steps) {
    losses.push_back(step.loss);
    losses.push_back(step.grad_norm);
  }
  return losses;
}

TEST(Trainer, SameLossListForDispatchersThreadsAndTiers) {
  for (DType dtype : {DType::bf16, DType::f32, DType::f16}) {
    TrainOptions options = test::train_options(dtype, 24);
    std::vector<double> expected = losses_of(test::train_on_ranks(options, {}));
    ASSERT_EQ(expected.size(), 8U);
    for (Dispatcher dispatcher : all_dispatchers()) {
      options.layer.dispatcher = dispatcher;
      EXPECT_EQ(losses_of(test::train_on_ranks(options, {})), expected) << name(dispatcher) << " " << name(dtype);
    }
    EXPECT_EQ(losses_of(test::train_on_ranks(options, {.threads = 3})), expected) << name(dtype);
    for (const TierState& tier : tier_states()) {
      if (!tier.usable) continue;
      EXPECT_EQ(losses_of(test::train_on_ranks(options, {.kernel = std::string(name(tier.tier))})), expected)
          << name(tier.tier) << " " << name(dtype);
    }
  }
}

/// Trains in `ranks` processes over shared memory; rank 0's losses come back through a pipe.
std::vector<double> train_in_processes(const TrainOptions& options, int ranks) {
  int pipe_ends[2];
  EXPECT_EQ(pipe(pipe_ends), 0);
  std::string job = "train-test-" + std::to_string(getpid());
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    pid_t child = fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    auto group = join_shm_group(rank, ranks, job, "train");
    auto context = test::make_context();
    bool ok = group.ok();
    auto trainer = ok ? Trainer::create(*context, **group, options) : Result<Trainer>(group.status());
    for (int step = 0; ok && trainer.ok() && step < 4; ++step) {
      auto report = trainer->step();
      ok = report.ok();
      double values[2] = {ok ? report->loss : 0, ok ? report->grad_norm : 0};
      if (rank == 0) ok = write(pipe_ends[1], values, sizeof values) == sizeof values && ok;
    }
    _exit(ok && trainer.ok() ? 0 : 1);
  }
  close(pipe_ends[1]);
  std::vector<double> losses;
  for (double value = 0; read(pipe_ends[0], &value, sizeof value) == sizeof value;) losses.push_back(value);
  close(pipe_ends[0]);
  for (pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  return losses;
}

TEST(Trainer, SameLossListInProcesses) {
  TrainOptions options = test::train_options(DType::bf16, 24);
  std::vector<double> in_processes = train_in_processes(options, 2);
  EXPECT_EQ(in_processes, losses_of(test::train_on_ranks(options, {.ranks = 2})));
}

TEST(Trainer, FirstStepIsTheSameOnAnyNumberOfRanks) {
  // The global batch is the same: 48 tokens. Loss, routing and the experts' gradients keep their bits; gradients of replicated parameters
  // are sums over ranks, so later steps agree only closely.
  std::vector<std::vector<TrainStep>> runs;
  for (int ranks : {1, 2, 4}) {
    runs.push_back(test::train_on_ranks(test::train_options(DType::bf16, 48 / ranks), {.ranks = ranks, .threads = 1, .kernel = "", .steps = 6}));
    EXPECT_EQ(runs.back()[0].loss, runs[0][0].loss) << ranks;
    EXPECT_EQ(runs.back()[0].tokens_per_expert, runs[0][0].tokens_per_expert) << ranks;
    EXPECT_NEAR(runs.back()[0].grad_norm, runs[0][0].grad_norm, 1e-5 * runs[0][0].grad_norm) << ranks;
    EXPECT_NEAR(runs.back()[5].loss, runs[0][5].loss, 2e-2) << ranks;
  }
}

TEST(Trainer, LossFallsAndRepeats) {
  TrainOptions options = test::train_options(DType::bf16, 64);
  options.optimizer.learning_rate = 3e-3F;
  test::RunOfRanks how{.ranks = 2, .threads = 1, .kernel = "", .steps = 40};
  std::vector<TrainStep> steps = test::train_on_ranks(options, how);
  EXPECT_NEAR(steps[0].loss, std::log(256.0), 0.6);
  EXPECT_LT(steps.back().loss, 0.5 * steps[0].loss);
  for (const TrainStep& step : steps) {
    EXPECT_EQ(step.nonfinite, 0);
    EXPECT_GT(step.grad_norm, 0);
    int64_t entries = 0;
    for (int64_t n : step.tokens_per_expert) entries += n;
    EXPECT_EQ(entries, 2 * 64 * 2);
  }
  EXPECT_EQ(losses_of(test::train_on_ranks(options, how)), losses_of(steps));
}

TEST(Trainer, EveryOptionalPartTrains) {
  TrainOptions options = test::train_options(DType::f32, 16);
  options.layer.router.score = ScoreFunction::topk_softmax;
  options.layer.router.norm_topk = false;
  options.layer.expert_bias = true;
  options.layer.activation.kind = ActivationKind::swiglu_clamped;
  options.layer.activation.interleaved = true;
  for (const TrainStep& step : test::train_on_ranks(options, {})) EXPECT_EQ(step.nonfinite, 0);
  options.layer.router.score = ScoreFunction::sigmoid;
  options.layer.router.norm_topk = true;
  options.layer.expert_bias = false;
  options.layer.activation = {.kind = ActivationKind::relu2, .interleaved = false};
  for (const TrainStep& step : test::train_on_ranks(options, {})) EXPECT_EQ(step.nonfinite, 0);
}

TEST(Trainer, NoTokensTrainNothing) {
  std::vector<TrainStep> steps = test::train_on_ranks(test::train_options(DType::bf16, 0), {});
  EXPECT_EQ(steps[0].loss, 0);
  EXPECT_EQ(steps[0].grad_norm, 0);
  EXPECT_EQ(steps[0].nonfinite, 0);
}

TEST(Trainer, ImpossibleSettingsAreErrors) {
  auto context = test::make_context();
  auto groups = make_thread_groups(1);
  ASSERT_TRUE(groups.ok());
  TrainOptions options = test::train_options(DType::bf16, 4);
  options.text = Text();
  EXPECT_EQ(Trainer::create(*context, *(*groups)[0], options).status().code(), StatusCode::invalid_argument);
  options = test::train_options(DType::bf16, -1);
  EXPECT_EQ(Trainer::create(*context, *(*groups)[0], options).status().code(), StatusCode::invalid_argument);
  options = test::train_options(DType::bf16, 4);
  options.layer.router.top_k = 9;
  EXPECT_EQ(Trainer::create(*context, *(*groups)[0], options).status().code(), StatusCode::invalid_argument);
}

/// Sum over the ranks of a double.
double sum_over_ranks(Group& group, double value) {
  auto all = group.exchange("test", std::as_bytes(std::span(&value, 1)));
  EXPECT_TRUE(all.ok());
  double sum = 0;
  for (int rank = 0; rank < group.size() && all.ok(); ++rank) {
    double other = 0;
    std::memcpy(&other, all->payload(rank).data(), sizeof other);
    sum += other;
  }
  return sum;
}

/// Moves a parameter along its gradient by +h and -h: the loss must change by 2 h times the gradient's norm.
void check_gradient(Group& group, Trainer& trainer, const Parameter& item, double num_tokens) {
  constexpr double h = 0.01;
  std::vector<double> value = test::to_vector(item.value), gradient = test::to_vector(item.gradient);
  double squares = 0;
  for (double& g : gradient) {
    g /= num_tokens;
    squares += g * g;
  }
  double norm = std::sqrt(item.spec.sharded ? sum_over_ranks(group, squares) : squares);
  ASSERT_GT(norm, 0) << gradient_name(item.spec.id);
  double losses[2];
  for (int side = 0; side < 2; ++side) {
    for (size_t i = 0; i < value.size(); ++i) {
      test::set(item.value, static_cast<int64_t>(i), value[i] + (side == 0 ? h : -h) * gradient[i] / norm);
    }
    auto report = trainer.evaluate();
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    losses[side] = report->loss;
  }
  for (size_t i = 0; i < value.size(); ++i) test::set(item.value, static_cast<int64_t>(i), value[i]);
  ASSERT_TRUE(trainer.evaluate().ok());  // the gradients of the unmoved parameters, for the next one
  EXPECT_NEAR((losses[0] - losses[1]) / (2 * h), norm, 0.01 * norm + 5e-5) << gradient_name(item.spec.id);
}

TEST(Trainer, GradientsEqualFiniteDifferences) {
  TrainOptions options = test::train_options(DType::f32, 12, 16);
  options.layer.router.score = ScoreFunction::topk_softmax;
  options.layer.router.norm_topk = false;
  options.layer.router.num_experts = options.layer.router.top_k = 4;  // every expert takes part: no choice that a step could flip
  options.layer.router.z_loss = 0.1F;
  options.layer.expert_bias = true;
  std::vector<Status> statuses = run_ranks(2, {}, [&](Group& group) -> Status {
    auto context = test::make_context();
    auto trainer = Trainer::create(*context, group, options);
    if (!trainer.ok()) return trainer.status();
    auto first = trainer->evaluate();
    if (!first.ok()) return first.status();
    for (const Parameter& item : trainer->parameters().items()) {
      if (item.gradient.defined()) check_gradient(group, *trainer, item, 2.0 * 12);
    }
    return {};
  });
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(Trainer, StepsLeaveMemoryAndFloatModeAsTheyWere) {
  TrainOptions options = test::train_options(DType::bf16, 16);
  std::vector<Status> statuses = run_ranks(2, {}, [&](Group& group) -> Status {
    auto context = test::make_context(2);
    auto trainer = Trainer::create(*context, group, options);
    if (!trainer.ok()) return trainer.status();
    int64_t arena_bytes = 0, window_bytes = 0;
    for (int step = 0; step < 60; ++step) {
      auto report = trainer->step();
      if (!report.ok()) return report.status();
      if (step == 20) {
        arena_bytes = context->arena().bytes_in_use();
        window_bytes = group.peak_window_bytes();
      }
    }
    EXPECT_EQ(context->arena().bytes_in_use(), arena_bytes);
    EXPECT_LE(group.peak_window_bytes(), 2 * window_bytes);  // the routing moves a little; 40 steps that leak would need far more
    volatile float denormal = 0x1p-140F;
    EXPECT_EQ(denormal * 1.0F, 0x1p-140F);
    return {};
  });
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(Trainer, NonFiniteGradientsAreCountedAndChangeNothing) {
  TrainOptions options = test::train_options(DType::f32, 8);
  std::vector<Status> statuses = run_ranks(2, {}, [&](Group& group) -> Status {
    auto context = test::make_context();
    auto trainer = Trainer::create(*context, group, options);
    if (!trainer.ok()) return trainer.status();
    test::set(trainer->parameters().value(Stream::head), 0, HUGE_VAL);
    std::vector<double> before = test::to_vector(trainer->parameters().value(Stream::embedding));
    auto report = trainer->step();
    if (!report.ok()) return report.status();
    EXPECT_GT(report->nonfinite, 0);
    EXPECT_EQ(test::to_vector(trainer->parameters().value(Stream::embedding)), before);
    return {};
  });
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.to_string();
}

}  // namespace
}  // namespace plait::train
