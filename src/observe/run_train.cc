#include <fmt/format.h>

#include "base/status_macros.h"
#include "observe/routing_report.h"
#include "observe/run_phases.h"
#include "train/trainer.h"

namespace plait {
namespace {

Result<train::Text> training_text(const Case& run_case) {
  if (run_case.input.empty()) return train::Text::generated(run_case.seed);
  return train::Text::load(run_case.input);
}

}  // namespace

Status train_dispatchers(RunCall& call) {
  train::TrainOptions options;
  options.tokens = call.run_case.tokens;
  options.seed = call.run_case.seed;
  PLAIT_ASSIGN_OR_RETURN(options.text, training_text(call.run_case));
  std::vector<train::Trainer> trainers;
  for (Dispatcher dispatcher : call.run_case.dispatchers) {
    options.layer = call.run_case.layer;
    options.layer.dispatcher = dispatcher;
    PLAIT_ASSIGN_OR_RETURN(train::Trainer trainer, train::Trainer::create(call.context, call.group, options));
    trainers.push_back(std::move(trainer));
  }
  call.report.routing.clear();
  for (int64_t step = 0; step < call.options.steps; ++step) {
    PLAIT_ASSIGN_OR_RETURN(bool stop, call.interrupted());
    if (stop) return {};
    for (size_t i = 0; i < trainers.size(); ++i) {
      call.progress.next(fmt::format("step {} of {}: {}", step + 1, call.options.steps, name(call.run_case.dispatchers[i])));
      PLAIT_ASSIGN_OR_RETURN(train::TrainStep result, trainers[i].step());
      DispatcherReport& report = call.report.dispatchers[i];
      report.loss.push_back(result.loss);
      report.grad_norm.push_back(result.grad_norm);
      report.nonfinite += result.nonfinite;
      if (i == 0) call.report.routing.push_back(routing_report(std::move(result.tokens_per_expert)));
    }
  }
  return {};
}

}  // namespace plait
