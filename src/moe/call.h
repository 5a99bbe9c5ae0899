#pragma once
/// One call of the layer on one rank: what all its stages need, and which stage is running.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "plait/counters.h"
#include "plait/layer.h"

namespace plait {
class TileScheduler;
}

namespace plait::moe {

/// Work that needs no peer, as chains that fill the gaps of a fused call.
class FillerWork {
 public:
  virtual ~FillerWork() = default;
  /// The chains have run when the scheduler's run has returned without an error. It must stay where it is until then.
  virtual Status add_to(TileScheduler& scheduler) = 0;
};

struct LayerCall {
  const Context& context;
  Group& group;
  const LayerConfig& config;
  const LayerWeights& weights;
  Dispatcher dispatcher = config.dispatcher;  ///< auto is resolved before anything runs
  std::string kind = {};                      ///< what the counts say about the call, for the times that auto learns from
  FillerWork* filler = nullptr;               ///< for the gaps of the expert part; what a path does not run comes after it
  Stage stage = Stage::other;                 ///< for messages: where a failure happened
  std::string unfinished = {};                ///< after a failure of a fused dispatcher: which tile waits for which rank

  ExpertPlacement placement() const { return {config.router.num_experts, group.size()}; }
  int64_t hidden_columns() const { return hidden_columns(config.intermediate); }
  int64_t hidden_columns(int64_t intermediate) const { return config.activation.hidden_columns(intermediate); }
};

/// Names and times the stage that a scope belongs to.
class StageScope {
 public:
  StageScope(LayerCall& call, Stage stage) : zone_(call.context.recorder(), stage) { call.stage = stage; }

 private:
  Zone zone_;
};

/// The status with this rank and the running stage where it names none; stops the group, so that no peer waits for this rank, and dumps
/// the state where PLAIT_DUMP asks for it.
Status stop_group(const LayerCall& call, std::string_view operation, Status status);

/// What all ranks must agree on in this call.
CallSignature signature(const LayerCall& call, std::string_view operation);

/// Checks of a call's arguments before anything runs: each names the tensor, its shape, and the shape and type that the rule asks for.
Status check_forward(const LayerCall& call, const ConstTensorView& x, const TensorView& y, const GivenRouting& given);
Status check_backward(const LayerCall& call, const ConstTensorView& x, const LayerState& state, const ConstTensorView& dy, const TensorView& dx,
                      const LayerGradients& gradients, const TensorView& dweights);

}  // namespace plait::moe
