/// What the fused pair refuses: every rank gets an error that names the culprit, none hangs.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "ops/alltoallv_gmm_support.h"
#include "plait/alltoallv_gmm.h"
#include "plait/group.h"
#include "support/test_tensors.h"

namespace plait::test {
namespace {

constexpr int num_ranks = 3;
constexpr int culprit = 1;

/// One rank's call. `home` is grouped_matmul_alltoallv; `backward` the backward of either.
struct Call {
  bool home = false, backward = false;
  Tensor x = {}, weight = {}, dy = {};
  std::vector<int64_t> send = {}, recv = {};
  AllToAllVGmmOptions options = {};
  AllToAllVGmmGradients gradients = {};
  AllToAllVGmmUpstream upstream = {};
};

PairCase small_case() {
  PairCase c{.num_ranks = num_ranks, .experts = 2, .k = 3, .n = 4, .seed = 1};
  c.counts = {1, 2, 3, 1, 2, 2, /**/ 2, 1, 1, 2, 3, 0, /**/ 3, 1, 1, 1, 2, 1};
  return c;
}

Call call_of(int rank, bool home, bool backward) {
  const PairCase c = small_case();
  Call call{.home = home, .backward = backward};
  const int64_t at_home = c.num_home_rows(rank), at_experts = c.num_expert_rows(rank);
  call.x = c.rows(rank, 1, backward || home ? at_experts : at_home, c.k);
  call.dy = c.rows(rank, 2, home ? at_home : at_experts, c.n);
  call.weight = c.weight(rank);
  call.send = home ? c.arrive_counts(rank) : c.out_counts(rank);
  call.recv = home ? c.out_counts(rank) : c.arrive_counts(rank);
  call.upstream.dy = call.dy;
  return call;
}

Status run(const Context& context, Group& group, const Call& call) {
  if (call.backward) {
    const auto back = call.home ? grouped_matmul_alltoallv_backward : alltoallv_grouped_matmul_backward;
    return back(context, group, call.upstream, call.x, call.weight, call.send, call.recv, call.gradients, call.options).status();
  }
  const auto forward = call.home ? grouped_matmul_alltoallv : alltoallv_grouped_matmul;
  return forward(context, group, call.x, call.weight, call.send, call.recv, call.options).status();
}

using Change = std::function<void(Call&)>;

/// All ranks call, the culprit with a change; every rank's message has all the words and every status names the rank `named`.
void expect_refused(const Call& kind, const Change& change, const std::vector<std::string>& words, int named = culprit) {
  for (const bool fused : {true, false}) {
    const std::vector<Status> statuses = run_ranks(num_ranks, {}, [&](Group& group) -> Status {
      PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, Context::create({.threads = 2, .kernel = ""}));
      Call call = call_of(group.rank(), kind.home, kind.backward);
      call.options.fused = fused;
      if (group.rank() == culprit) change(call);
      return run(*context, group, call);
    });
    for (const Status& status : statuses) {
      EXPECT_FALSE(status.ok());
      EXPECT_EQ(status.rank(), named) << status.to_string();
      for (const std::string& word : words) EXPECT_NE(status.message().find(word), std::string::npos) << word << " in: " << status.to_string();
    }
  }
}

const Call kinds[] = {
    {.home = false, .backward = false}, {.home = true, .backward = false}, {.home = false, .backward = true}, {.home = true, .backward = true}};

TEST(FusedPairErrors, NothingIsWrongWithoutAChange) {
  for (const Call& kind : kinds) {
    EXPECT_EQ(run_pair(small_case(), {},
                       [&](const Context& context, Group& group) { return run(context, group, call_of(group.rank(), kind.home, kind.backward)); }),
              "");
  }
}

/// Sums agree on every rank and overall: only the comparison of single counts can see it.
TEST(FusedPairErrors, CountsThatDisagreeWhileAllTotalsAgree) {
  const Change swap_received = [](Call& call) { std::swap(call.recv[0], call.recv[2]); };  // of rank 0 and of rank 1, its first expert
  expect_refused(kinds[0], swap_received, {"rank 0 sends 3 rows for expert 2 to rank 1, which expects 1"}, 0);
  // There rank 1's list of what comes home counts its own rows.
  expect_refused(kinds[1], [](Call& call) { std::swap(call.recv[0], call.recv[1]); },
                 {"rank 0 sends 2 rows for expert 0 to rank 1, which expects 1"});
  expect_refused(kinds[2], [](Call& call) { std::swap(call.send[0], call.send[1]); },
                 {"rank 0 sends 2 rows for expert 0 to rank 1, which expects 1"});
  expect_refused(
      kinds[3], [](Call& call) { std::swap(call.send[0], call.send[2]); }, {"rank 0 sends 3 rows for expert 2 to rank 1, which expects 1"}, 0);
}

TEST(FusedPairErrors, ListsInExpertMajorOrder) {
  expect_refused(kinds[0],
                 [](Call& call) {
                   const std::vector<int64_t> right = call.recv;
                   for (size_t s = 0; s < 3; ++s) {
                     for (size_t j = 0; j < 2; ++j) call.recv[j * 3 + s] = right[s * 2 + j];
                   }
                 },
                 {"rank 1 sends 2 rows for expert 3 to rank 1, which expects 1"});
}

TEST(FusedPairErrors, RanksThatCallDifferently) {
  for (const Call& kind : kinds) {
    expect_refused(kind,
                   [](Call& call) {
                     for (Tensor* t : {&call.x, &call.weight, &call.dy}) {
                       *t = t->view.num_dims == 3 ? make_tensor(DType::bf16, {t->view.shape[0], t->view.shape[1], t->view.shape[2]})
                                                  : make_tensor(DType::bf16, {t->view.shape[0], t->view.shape[1]});
                     }
                     call.upstream.dy = call.dy;
                   },
                   {"element type", "rank 1 has bf16", "has f32"});
    expect_refused(kind, [](Call& call) { call.options.fused = !call.options.fused; }, {"dispatcher", "rank 1 has", "fused"});
    expect_refused(kind,
                   [](Call& call) {
                     call.weight = small_case().rows(0, 9, 2 * 4, 3);
                     call.weight.view = TensorView(call.weight.view.data, DType::f32, {2, 4, 3});
                     call.options.trans_weight = true;
                   },
                   {"detail", "trans_weight true", "trans_weight false"});
    expect_refused(kind,
                   [](Call& call) {
                     const PairCase wider{.num_ranks = num_ranks, .experts = 2, .k = 5, .n = 6, .seed = 1};
                     call.x = wider.rows(1, 1, call.x.view.shape[0], 5);
                     call.dy = wider.rows(1, 1, call.dy.view.shape[0], 6);
                     call.weight = wider.weight(1);
                     call.upstream.dy = call.dy;
                   },
                   {"hidden size", kind.backward ? "rank 1 has 6" : "rank 1 has 5"});
    expect_refused(kind,
                   [](Call& call) {
                     call.weight = PairCase{.num_ranks = num_ranks, .experts = 3, .k = 3, .n = 4}.weight(1);
                     for (std::vector<int64_t>* list : {&call.send, &call.recv}) list->resize(9, 0);
                   },
                   {"number of experts", "rank 1 has 9", "has 6"});
  }
  expect_refused(kinds[0], [](Call& call) { call = call_of(culprit, true, false); }, {"operation", "rank 1 has grouped_matmul_alltoallv"});
  expect_refused(kinds[1], [](Call& call) { call = call_of(culprit, true, true); }, {"operation", "rank 1 has grouped_matmul_alltoallv_backward"});
}

TEST(FusedPairErrors, ValuesThatBreakARule) {
  for (const Call& kind : kinds) {
    expect_refused(kind, [&](Call& call) { (kind.backward ? call.recv : call.send)[4] += 2; }, {"rows", "add up to", "must be equal"});
    expect_refused(kind, [](Call& call) { call.send[3] = -1; }, {"send_counts[3] is -1 (rank 1, its expert 1)", "at least 0"});
    expect_refused(kind, [](Call& call) { call.recv[0] = -7; }, {"recv_counts[0] is -7 (rank 0, its expert 0)"});
    expect_refused(kind, [](Call& call) { call.recv.pop_back(); }, {"recv_counts has 5 items", "need 6"});
    expect_refused(kind, [](Call& call) { call.weight = make_tensor(DType::f16, {2, 3, 4}); }, {"f32", "f16", "one type"});
    expect_refused(kind, [](Call& call) { call.weight = make_tensor(DType::f32, {2, 7, 8}); }, {"(2, ", "must be equal"});
    expect_refused(kind, [](Call& call) { call.weight = make_tensor(DType::f32, {3, 4}); }, {"3 dimensions"});
  }
  for (const Call& kind : {kinds[0], kinds[1]}) {
    const Tensor odd = make_tensor(DType::f32, {2, 5});
    expect_refused(kind, [&](Call& call) { call.options.bias = odd; }, {"bias is f32 (2, 5)", "(2, 4)"});
    expect_refused(kind, [&](Call& call) { call.options.shared_x = odd; }, {"shared_x is given without shared_weight"});
    expect_refused(kind, [&](Call& call) { call.options.shared_x = call.options.shared_weight = odd; }, {"shared product", "must be equal"});
  }
  expect_refused(kinds[1], [](Call& call) { call.options.return_permuted = true; }, {"return_permuted"});
}

TEST(FusedPairErrors, GradientsThatDoNotFit) {
  for (const Call& kind : {kinds[2], kinds[3]}) {
    const Tensor odd = make_tensor(DType::f32, {2, 4, 4}), right = make_tensor(DType::f32, {2, 3, 4}), small = make_tensor(DType::f32, {2, 4});
    expect_refused(kind, [&](Call& call) { call.gradients.weight = odd; }, {"gradient of weight", "(2, 3, 4)"});
    expect_refused(kind, [&](Call& call) { call.gradients.bias = odd; }, {"gradient of bias", "(2, 4)"});
    expect_refused(kind,
                   [&](Call& call) {
                     call.gradients.weight = right;
                     call.x = {};
                   },
                   {"rows of forward"});
    expect_refused(kind, [&](Call& call) { call.gradients.weight = call.weight; }, {"shares memory with weight"});
    expect_refused(kind, [&](Call& call) { call.gradients.shared_weight = small; }, {"dshared_y"});
    expect_refused(kind, [&](Call& call) { call.upstream.dshared_y = small; }, {"without shared_weight"});
  }
}

/// A group that failed is over; a new one works in the same process.
TEST(FusedPairErrors, ANewGroupWorksAfterwards) {
  expect_refused(kinds[0], [](Call& call) { call.send[3] = -1; }, {"-1"});
  EXPECT_EQ(
      run_pair(small_case(), {}, [&](const Context& context, Group& group) { return run(context, group, call_of(group.rank(), false, false)); }), "");
}

}  // namespace
}  // namespace plait::test
