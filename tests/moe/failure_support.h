#pragma once
/// A layer of which all results are known, and what must hold after a rank failed in it.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "plait/context.h"
#include "plait/group.h"
#include "plait/layer.h"
#include "support/hooked_group.h"
#include "support/layer_case.h"

namespace plait::test {

/// Dispatchers that wait for ranks in ways of their own; eager waits as alltoall does, auto as the one that it chooses.
std::vector<Dispatcher> waiting_dispatchers();

/// Twelve experts, given routing, and what comes out in groups of 1 to 4 ranks.
class KnownLayer {
 public:
  enum class Size { small, large };  ///< nearly no work, or some milliseconds of it
  explicit KnownLayer(Dispatcher dispatcher, Size size = Size::small);
  const LayerInputs& inputs() const { return in_; }
  TokenSplit split(int size) const;

  /// One forward, and one backward of its state. `result` must outlive neither.
  Result<LayerState> forward(const Context& context, Group& group, RankResult& result) const;
  Status backward(const Context& context, Group& group, const LayerState& state, const RankResult& result) const;
  /// Both; ok where the bits are the known ones.
  Status step(const Context& context, Group& group) const;

 private:
  LayerInputs in_;
  std::map<int, std::vector<RankResult>> expected_;
};

/// A body on every rank of a group with this time-out, which ends by an error; the process then makes a new group, in which the layer must
/// give the known bits. Each rank has a context of one thread. A body that throws ends as its engine's ranks do. Statuses of the bodies in
/// rank order.
using FailingBody = std::function<Status(const Context&, Group&)>;
std::vector<Status> fail_then_work(Engine engine, int size, double timeout_s, const KnownLayer& layer, const FailingBody& body);

/// Holds the rank up until the group has failed.
void stall(Group& group);

/// Rank 2 of 3 stops before the `nth` of its calls of this kind (and channel) until the others have given up, which they do after a short
/// time: it is as much too late as never, and hears why it failed. The others run `before` and then, each on its own, one step.
struct StallPoint {
  GroupCall::Kind kind;
  int channel;
  int nth;
};
std::vector<Status> stall_at(Engine engine, const KnownLayer& layer, const StallPoint& point, const std::function<void()>& before = {});

struct ExpectedError {
  StatusCode code;
  int rank;
  std::string stage;
  std::vector<std::string> words;
  bool names_expert = false;
};
void expect_error(const Status& status, const ExpectedError& expected, const std::string& what);

}  // namespace plait::test
