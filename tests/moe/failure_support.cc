#include "failure_support.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "support/processes.h"

namespace plait::test {
namespace {

std::vector<std::unique_ptr<Context>> make_contexts(int size) {
  std::vector<std::unique_ptr<Context>> contexts;
  for (int rank = 0; rank < size; ++rank) contexts.push_back(Context::create({.threads = 1, .kernel = {}}).take());
  return contexts;
}

Status again(Result<std::unique_ptr<Group>> group, const Context& context, const KnownLayer& layer) {
  if (!group.ok()) return Status::internal("no new group: " + group.status().to_string());
  const Status status = layer.step(context, **group);
  return status.ok() ? status : Status::internal("in the new group: " + status.to_string());
}

/// The body in a group of its own, which has ended when this returns.
Status fail_once(Result<std::unique_ptr<Group>> group, const Context& context, const FailingBody& body) {
  PLAIT_RETURN_IF_ERROR(group.status());
  return body(context, **group);
}

}  // namespace

std::vector<Dispatcher> waiting_dispatchers() {
  std::vector<Dispatcher> list(all_dispatchers().begin(), all_dispatchers().end());
  std::erase_if(list, [](Dispatcher d) { return d == Dispatcher::eager || d == Dispatcher::automatic; });
  return list;
}

KnownLayer::KnownLayer(Dispatcher dispatcher, Size size) {
  LayerConfig config = small_config(DType::f32);
  config.router.num_experts = 12;
  config.dispatcher = dispatcher;
  if (size == Size::large) {
    config.hidden = 99;
    config.intermediate = 161;
  }
  in_ = make_inputs(config, {.tokens = size == Size::large ? 301 : 15, .seed = 7, .given_routing = true});
  for (int ranks = 1; ranks <= 4; ++ranks) expected_[ranks] = run_layer(in_, split(ranks)).take();
}

TokenSplit KnownLayer::split(int size) const {
  TokenSplit split(static_cast<size_t>(size), in_.num_tokens() / size);
  split.back() += in_.num_tokens() % size;
  return split;
}

Result<LayerState> KnownLayer::forward(const Context& context, Group& group, RankResult& result) const {
  const TokenSplit tokens = split(group.size());
  result = make_rank_result(in_, tokens, group.rank());
  return layer_forward(context, group, in_.config, rank_weights(in_, group.rank(), group.size()), rank_rows(in_.x, tokens, group.rank()), result.y,
                       rank_routing(in_, tokens, group.rank()));
}

Status KnownLayer::backward(const Context& context, Group& group, const LayerState& state, const RankResult& result) const {
  const TokenSplit tokens = split(group.size());
  return layer_backward(context, group, in_.config, rank_weights(in_, group.rank(), group.size()), rank_rows(in_.x, tokens, group.rank()), state,
                        rank_rows(in_.dy, tokens, group.rank()), result.dx, gradients_of(result), result.dweights);
}

Status KnownLayer::step(const Context& context, Group& group) const {
  RankResult result;
  PLAIT_ASSIGN_OR_RETURN(const LayerState state, forward(context, group, result));
  PLAIT_RETURN_IF_ERROR(backward(context, group, state, result));
  const std::string text = difference(result, expected_.at(group.size())[static_cast<size_t>(group.rank())]);
  return text.empty() ? Status() : Status::internal("wrong bits: " + text);
}

std::vector<Status> fail_then_work(Engine engine, int size, double timeout_s, const KnownLayer& layer, const FailingBody& body) {
  const std::vector<std::unique_ptr<Context>> contexts = make_contexts(size);
  auto context = [&](int rank) -> const Context& { return *contexts[static_cast<size_t>(rank)]; };
  const GroupOptions options{.timeout_s = timeout_s};
  std::vector<Status> statuses;
  if (engine == Engine::threads) {
    statuses = run_ranks(size, options, [&](Group& group) { return body(context(group.rank()), group); });
    const std::vector<Status> later = run_ranks(size, {}, [&](Group& group) { return layer.step(context(group.rank()), group); });
    EXPECT_EQ(first_error(later), "");
    return statuses;
  }
  const std::string job = unique_job();
  const SharedCounter started;  // joining is subject to the time-out too
  Processes processes(size, [&](int rank) -> Status {
    started.add();
    started.wait_for(size);
    Status status;
    try {
      status = fail_once(join_shm_group(rank, size, job, "g", options), context(rank), body);
    } catch (const std::exception& error) {  // a program that goes on after it
      status = Status::internal(error.what()).at_rank(rank);
    }
    PLAIT_RETURN_IF_ERROR(again(join_shm_group(rank, size, job, "again"), context(rank), layer));
    return status;
  });
  for (const Outcome& outcome : processes.wait()) {
    EXPECT_TRUE(outcome.exited) << outcome.to_string();
    statuses.push_back(outcome.status);
  }
  return statuses;
}

void stall(Group& group) {
  while (group.health().ok()) poll(nullptr, 0, 1);
}

std::vector<Status> stall_at(Engine engine, const KnownLayer& layer, const StallPoint& point, const std::function<void()>& before) {
  constexpr double short_timeout_s = 1;  // no rank that runs takes so long for one call, however loaded the machine is
  const SharedCounter given_up;
  return fail_then_work(engine, 3, short_timeout_s, layer, [&](const Context& context, Group& group) {
    if (before) before();
    int num_calls = 0;
    HookedGroup hooked(group, [&](Group& inner, const GroupCall& call) {
      if (inner.rank() != 2 || call.kind != point.kind || call.channel != point.channel || ++num_calls != point.nth) return;
      given_up.wait_for(2);
    });
    const Status status = layer.step(context, hooked);
    given_up.add();
    return status;
  });
}

void expect_error(const Status& status, const ExpectedError& expected, const std::string& what) {
  EXPECT_EQ(status.code(), expected.code) << what << ": " << status.to_string();
  EXPECT_EQ(status.rank(), expected.rank) << what << ": " << status.to_string();
  EXPECT_EQ(status.stage(), expected.stage) << what << ": " << status.to_string();
  for (const std::string& word : expected.words) EXPECT_NE(status.message().find(word), std::string::npos) << what << ": " << status.to_string();
  if (expected.names_expert) {
    EXPECT_GE(status.expert(), 0) << what << ": " << status.to_string();
  }
}

}  // namespace plait::test
