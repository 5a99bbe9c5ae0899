#include <cmath>
#include <numeric>

#include "base/status_macros.h"
#include "observe/inputs_file.h"
#include "observe/routing_report.h"
#include "observe/verify_call.h"
#include "train/trainer.h"

namespace plait::verify {
namespace {

constexpr int num_steps = 3;

struct Training {
  std::vector<double> losses, norms;
  std::vector<std::vector<int64_t>> routing;  ///< entries per expert of each step
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
    if (call.options.before_training) call.options.before_training(dispatcher, trainer.parameters());
    PLAIT_ASSIGN_OR_RETURN(train::TrainStep result, trainer.step());
    training.losses.push_back(result.loss);
    training.norms.push_back(result.grad_norm);
    training.routing.push_back(std::move(result.tokens_per_expert));
    training.nonfinite += result.nonfinite + (std::isfinite(result.loss) && std::isfinite(result.grad_norm) ? 0 : 1);
  }
  return training;
}

Status add_training(VerifyCall& call, std::string_view dispatcher, const Training& training) {
  PLAIT_RETURN_IF_ERROR(call.add("precision", fmt::format("{}: {} training steps finite", dispatcher, num_steps), training.nonfinite == 0,
                                 fmt::format("loss {:.6f} to {:.6f}, gradient norm {:.4g}, {} non-finite", training.losses.front(),
                                             training.losses.back(), training.norms.back(), training.nonfinite)));
  const std::vector<int64_t>& last = training.routing.back();
  int64_t total = std::accumulate(last.begin(), last.end(), int64_t{0});
  int64_t expected = call.run_case.ranks * call.run_case.tokens * call.run_case.layer.router.top_k;
  std::string detail = total == expected ? describe(routing_report(last)) : fmt::format("{} entries of {}", total, expected);
  return call.add("precision", fmt::format("{}: routing of step {}", dispatcher, num_steps), total == expected, std::move(detail));
}

Status compare_trainings(VerifyCall& call, std::string_view dispatcher, const Training& training, const Training& baseline) {
  std::string differing;
  if (training.losses != baseline.losses) differing += " losses";
  if (training.norms != baseline.norms) differing += " gradient norms";
  if (training.routing != baseline.routing) differing += " entries per expert";
  if (training.nonfinite != baseline.nonfinite) differing += " non-finite elements";
  return call.add("precision", fmt::format("{} = {}: losses, norms, routing", dispatcher, name(call.dispatchers[0])), differing.empty(),
                  differing.empty() ? "same bits" : fmt::format("differing:{}", differing));
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
    std::string_view dispatcher = name(call.dispatchers[d]);
    PLAIT_RETURN_IF_ERROR(add_training(call, dispatcher, training));
    if (d == 0) {
      baseline = std::move(training);
    } else {
      PLAIT_RETURN_IF_ERROR(compare_trainings(call, dispatcher, training, baseline));
    }
  }
  return {};
}

}  // namespace plait::verify
