#include <cmath>

#include "base/status_macros.h"
#include "config/case_fields.h"
#include "observe/inputs_file.h"
#include "observe/verify_call.h"
#include "train/trainer.h"

namespace plait::verify {
namespace {

constexpr int num_steps = 3;

struct Training {
  std::vector<double> losses, norms;
  int64_t nonfinite = 0;
};

Result<Training> train_short(VerifyCall& call, const train::Text& text, Dispatcher dispatcher) {
  train::TrainOptions options;
  options.layer = call.run_case.layer;
  options.layer.dispatcher = dispatcher;
  options.tokens = call.run_case.tokens;
  options.seed = call.run_case.seed;
  options.text = text;
  PLAIT_ASSIGN_OR_RETURN(train::Trainer trainer, train::Trainer::create(call.context, call.group, options));
  Training training;
  for (int step = 0; step < num_steps; ++step) {
    PLAIT_ASSIGN_OR_RETURN(train::TrainStep result, trainer.step());
    training.losses.push_back(result.loss);
    training.norms.push_back(result.grad_norm);
    training.nonfinite += result.nonfinite + (std::isfinite(result.loss) && std::isfinite(result.grad_norm) ? 0 : 1);
  }
  return training;
}

/// The training that shows a difference between a dispatcher and the baseline.
std::string training_command(const VerifyCall& call, Dispatcher dispatcher) {
  Case shown = call.options.run_case;
  shown.dispatchers = {call.dispatchers[0]};
  if (dispatcher != call.dispatchers[0]) shown.dispatchers.push_back(dispatcher);
  return fmt::format("plait run {} --steps {}", command_line_options(shown), num_steps);
}

}  // namespace

Status verify_precision(VerifyCall& call) {
  train::Text text = train::Text::generated(call.run_case.seed);
  if (!call.run_case.input.empty() && !is_array_path(call.run_case.input)) {
    PLAIT_ASSIGN_OR_RETURN(text, train::Text::load(call.run_case.input));
  }
  Training baseline;
  for (size_t d = 0; d < call.dispatchers.size(); ++d) {
    PLAIT_ASSIGN_OR_RETURN(Training training, train_short(call, text, call.dispatchers[d]));
    if (d == 0) baseline = training;
    std::string_view dispatcher = name(call.dispatchers[d]);
    PLAIT_RETURN_IF_ERROR(call.add("precision", fmt::format("{}: {} training steps finite", dispatcher, num_steps), training.nonfinite == 0,
                                   fmt::format("loss {:.6f} to {:.6f}, gradient norm {:.4g}, {} non-finite", training.losses.front(),
                                               training.losses.back(), training.norms.back(), training.nonfinite),
                                   training_command(call, call.dispatchers[d])));
    if (d == 0) continue;
    bool losses = training.losses == baseline.losses, norms = training.norms == baseline.norms;
    PLAIT_RETURN_IF_ERROR(
        call.add("precision", fmt::format("{} = {}: losses and norms", dispatcher, name(call.dispatchers[0])), losses && norms,
                 losses && norms ? "same bits" : fmt::format("losses {}, gradient norms {}", losses ? "equal" : "differ", norms ? "equal" : "differ"),
                 training_command(call, call.dispatchers[d])));
  }
  return {};
}

}  // namespace plait::verify
