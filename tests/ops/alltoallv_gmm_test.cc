/// The fused pair against its definition: layouts, sums, adjoints, and what is not copied.

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "base/status_macros.h"
#include "ops/alltoallv_gmm_support.h"
#include "plait/alltoallv_gmm.h"
#include "plait/counters.h"
#include "plait/grouped_matmul.h"
#include "support/test_tensors.h"

namespace plait::test {
namespace {

PairCase uneven_case(DType dtype, int num_ranks = 3, int64_t experts = 4) {
  PairCase c{.num_ranks = num_ranks, .experts = experts, .k = 7, .n = 10, .dtype = dtype, .load = Load::uneven, .seed = 12};
  c.fill_counts(6);
  return c;
}

/// What all ranks of a case give and get, computed in one place from the definition and the stand-alone grouped matmul.
struct World {
  std::vector<Tensor> x_home, x_experts, dy_home, dy_experts, weight, bias;
  std::vector<Tensor> permuted, permuted_dy;  ///< x_home and dy_home at the experts

  explicit World(const PairCase& c) {
    for (int r = 0; r < c.num_ranks; ++r) {
      x_home.push_back(c.rows(r, 1, c.num_home_rows(r), c.k));
      x_experts.push_back(c.rows(r, 2, c.num_expert_rows(r), c.k));
      dy_home.push_back(c.rows(r, 3, c.num_home_rows(r), c.n));
      dy_experts.push_back(c.rows(r, 4, c.num_expert_rows(r), c.n));
      weight.push_back(c.weight(r));
      bias.push_back(c.bias(r));
    }
    for (int r = 0; r < c.num_ranks; ++r) {
      permuted.push_back(gathered(c, x_home, r));
      permuted_dy.push_back(gathered(c, dy_home, r));
    }
  }
};

struct BackwardResults {
  Tensor dw, dbias;
};

/// For the test's own thread: one context serves one thread at a time.
class Expected {
 public:
  explicit Expected(const PairCase& c) : case_(c) {}
  Tensor product(const Tensor& x, const ConstTensorView& weight, const ConstTensorView& bias, int rank) const {
    Tensor y = make_tensor(case_.dtype, {x.view.shape[0], weight.shape[2]});
    EXPECT_TRUE(grouped_matmul(*context_, x, weight, case_.expert_rows(rank), bias, y).ok());
    return y;
  }
  /// Per rank, from expert-major rows and their upstream gradients.
  std::vector<BackwardResults> gradients(const std::vector<Tensor>& x, const std::vector<Tensor>& dy) const {
    std::vector<BackwardResults> all;
    for (int r = 0; r < case_.num_ranks; ++r) {
      const auto i = static_cast<size_t>(r);
      BackwardResults& of = all.emplace_back();
      of.dw = make_tensor(case_.dtype, {case_.experts, case_.k, case_.n});
      of.dbias = make_tensor(case_.dtype, {case_.experts, case_.n});
      EXPECT_TRUE(grouped_matmul_k(*context_, x[i], dy[i], case_.expert_rows(r), of.dw, false).ok());
      EXPECT_TRUE(grouped_bias_gradient(*context_, dy[i], case_.expert_rows(r), of.dbias, false).ok());
    }
    return all;
  }
  std::vector<Tensor> products(const std::vector<Tensor>& x, const World& world, bool transposed) const {
    std::vector<Tensor> all;
    for (int r = 0; r < case_.num_ranks; ++r) {
      const auto i = static_cast<size_t>(r);
      const ConstTensorView w = world.weight[i];
      all.push_back(transposed ? product(x[i], w.transposed(1, 2), {}, r) : product(x[i], w, world.bias[i], r));
    }
    return all;
  }

 private:
  const PairCase& case_;
  std::unique_ptr<Context> context_ = Context::create({.threads = 1, .kernel = ""}).take();
};

Status expect_bits(const ConstTensorView& got, const Tensor& expected, const char* what) {
  const std::string difference = bit_difference(got, expected);
  return difference.empty() ? Status() : Status::internal(std::string(what) + ": " + difference);
}

class PairDefinition : public ::testing::TestWithParam<std::tuple<DType, bool>> {
 protected:
  const PairCase c = uneven_case(std::get<0>(GetParam()));
  const bool fused = std::get<1>(GetParam());
  const World world{c};
  const Expected expected{c};
};

TEST_P(PairDefinition, Dispatch) {
  const std::vector<Tensor> y = expected.products(world.permuted, world, false);
  EXPECT_EQ(run_pair(c, {},
                     [&](const Context& context, Group& group) -> Status {
                       const auto r = static_cast<size_t>(group.rank());
                       const AllToAllVGmmOptions options{.bias = world.bias[r], .return_permuted = true, .fused = fused};
                       PLAIT_ASSIGN_OR_RETURN(const AllToAllVGmmResult got,
                                              alltoallv_grouped_matmul(context, group, world.x_home[r], world.weight[r], c.out_counts(group.rank()),
                                                                       c.arrive_counts(group.rank()), options));
                       PLAIT_RETURN_IF_ERROR(expect_bits(got.permuted, world.permuted[r], "permuted"));
                       return expect_bits(got.y, y[r], "y");
                     }),
            "");
}

TEST_P(PairDefinition, Combine) {
  const std::vector<Tensor> products = expected.products(world.x_experts, world, false);
  EXPECT_EQ(run_pair(c, {},
                     [&](const Context& context, Group& group) -> Status {
                       const auto r = static_cast<size_t>(group.rank());
                       const AllToAllVGmmOptions options{.bias = world.bias[r], .fused = fused};
                       PLAIT_ASSIGN_OR_RETURN(const AllToAllVGmmResult got,
                                              grouped_matmul_alltoallv(context, group, world.x_experts[r], world.weight[r],
                                                                       c.arrive_counts(group.rank()), c.out_counts(group.rank()), options));
                       return expect_bits(got.y, scattered(c, products, group.rank()), "y");
                     }),
            "");
}

using Backward = decltype(&alltoallv_grouped_matmul_backward);

/// One rank's backward: `rows` and `dy` expert major, as the sums of the gradients need them, `upstream` as the operator gets it.
Status check_backward(const Context& context, Group& group, const PairCase& c, bool fused, Backward backward, const Tensor& upstream,
                      const Tensor& rows, const Tensor& weight, std::span<const int64_t> send, std::span<const int64_t> recv, const Tensor& dx,
                      const BackwardResults& expected) {
  const Tensor dw = make_tensor(c.dtype, {c.experts, c.k, c.n}), dbias = make_tensor(c.dtype, {c.experts, c.n});
  const AllToAllVGmmOptions options{.fused = fused};
  PLAIT_ASSIGN_OR_RETURN(const AllToAllVGmmInputGradients got,
                         backward(context, group, {.dy = upstream}, rows, weight, send, recv, {.weight = dw, .bias = dbias}, options));
  PLAIT_RETURN_IF_ERROR(expect_bits(got.dx, dx, "dx"));
  PLAIT_RETURN_IF_ERROR(expect_bits(dw, expected.dw, "dw"));
  return expect_bits(dbias, expected.dbias, "dbias");
}

TEST_P(PairDefinition, DispatchBackward) {
  const std::vector<Tensor> dx = expected.products(world.dy_experts, world, true);
  const std::vector<BackwardResults> sums = expected.gradients(world.permuted, world.dy_experts);
  EXPECT_EQ(run_pair(c, {},
                     [&](const Context& context, Group& group) {
                       const int rank = group.rank();
                       const auto r = static_cast<size_t>(rank);
                       return check_backward(context, group, c, fused, alltoallv_grouped_matmul_backward, world.dy_experts[r], world.permuted[r],
                                             world.weight[r], c.out_counts(rank), c.arrive_counts(rank), scattered(c, dx, rank), sums[r]);
                     }),
            "");
}

TEST_P(PairDefinition, CombineBackward) {
  const std::vector<Tensor> dx = expected.products(world.permuted_dy, world, true);
  const std::vector<BackwardResults> sums = expected.gradients(world.x_experts, world.permuted_dy);
  EXPECT_EQ(run_pair(c, {},
                     [&](const Context& context, Group& group) {
                       const int rank = group.rank();
                       const auto r = static_cast<size_t>(rank);
                       return check_backward(context, group, c, fused, grouped_matmul_alltoallv_backward, world.dy_home[r], world.x_experts[r],
                                             world.weight[r], c.arrive_counts(rank), c.out_counts(rank), dx[r], sums[r]);
                     }),
            "");
}

INSTANTIATE_TEST_SUITE_P(Types, PairDefinition, ::testing::Combine(::testing::Values(DType::f32, DType::bf16, DType::f16), ::testing::Bool()));

/// Rows that say where they come from, through identity weights: there, each in its place; and back, where it was.
TEST(FusedPairLayout, BothWaysAreInverse) {
  PairCase c{.num_ranks = 4, .experts = 3, .k = 2, .n = 2, .load = Load::uneven, .seed = 3};
  c.fill_counts(5);
  std::vector<Tensor> x;
  for (int r = 0; r < c.num_ranks; ++r) {
    x.push_back(make_tensor(DType::f32, {c.num_home_rows(r), 2}));
    for (int64_t i = 0; i < c.num_home_rows(r); ++i) {
      set(x.back(), 2 * i, r);
      set(x.back(), 2 * i + 1, static_cast<double>(i));
    }
  }
  const Tensor identity = make_tensor(DType::f32, {c.experts, 2, 2});
  for (int64_t i = 0; i < identity.view.num_elements(); ++i) set(identity, i, i % 4 == 0 || i % 4 == 3 ? 1 : 0);
  for (const bool fused : {true, false}) {
    EXPECT_EQ(run_pair(c, {.threads = 2},
                       [&](const Context& context, Group& group) -> Status {
                         const Tensor& own = x[static_cast<size_t>(group.rank())];
                         const std::vector<int64_t> send = c.out_counts(group.rank()), recv = c.arrive_counts(group.rank());
                         const AllToAllVGmmOptions options{.fused = fused};
                         PLAIT_ASSIGN_OR_RETURN(const AllToAllVGmmResult there,
                                                alltoallv_grouped_matmul(context, group, own, identity, send, recv, options));
                         PLAIT_RETURN_IF_ERROR(expect_bits(there.y, gathered(c, x, group.rank()), "there"));
                         PLAIT_ASSIGN_OR_RETURN(const AllToAllVGmmResult back,
                                                grouped_matmul_alltoallv(context, group, there.y, identity, recv, send, options));
                         return expect_bits(back.y, own, "back");
                       }),
              "");
  }
}

double dot(const ConstTensorView& a, const ConstTensorView& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.num_elements(); ++i) sum += get(a, i) * get(b, i);
  return sum;
}

/// The sides of <y, dy> = <x, dx> = <weight, dweight> on one rank; exact, since all numbers are small and whole.
struct Sides {
  double y = 0, x = 0, weight = 0, shared_y = 0, shared_x = 0, shared_weight = 0;
};

struct AdjointCase {
  PairCase c;
  bool home, trans;
};

Status adjoint_on_rank(const Context& context, Group& group, const AdjointCase& a, Sides& sides) {
  const PairCase& c = a.c;
  const int rank = group.rank();
  const std::vector<int64_t> out = c.out_counts(rank), arrive = c.arrive_counts(rank);
  const int64_t num_x = a.home ? c.num_expert_rows(rank) : c.num_home_rows(rank), num_y = a.home ? c.num_home_rows(rank) : c.num_expert_rows(rank);
  const Tensor x = c.rows(rank, 1, num_x, c.k), dy = c.rows(rank, 2, num_y, c.n);
  const Tensor shared_x = c.rows(rank, 3, 5, 6), dshared_y = c.rows(rank, 4, 5, 6);
  // Square, so that a gradient through the untransposed weight would have the right shape and the wrong numbers.
  const Tensor shared_weight = c.rows(0, 5, 6, 6);
  TensorView weight = c.weight(rank), stored;
  const Tensor weight_memory = a.trans ? stored_transposed(c.weight(rank), 1, 2, stored) : c.weight(rank);
  weight = weight_memory;
  AllToAllVGmmOptions options{.shared_x = shared_x, .shared_weight = shared_weight, .trans_weight = a.trans, .trans_shared_weight = a.trans};
  options.return_permuted = !a.home;
  const Tensor dw = make_tensor(DType::f32, {weight.shape[0], weight.shape[1], weight.shape[2]}), dshared_w = make_tensor(DType::f32, {6, 6});
  const AllToAllVGmmGradients gradients{.weight = dw, .shared_weight = dshared_w};
  const auto run = a.home ? grouped_matmul_alltoallv : alltoallv_grouped_matmul;
  const auto back = a.home ? grouped_matmul_alltoallv_backward : alltoallv_grouped_matmul_backward;
  const std::vector<int64_t>&send = a.home ? arrive : out, &recv = a.home ? out : arrive;
  PLAIT_ASSIGN_OR_RETURN(const AllToAllVGmmResult y, run(context, group, x, weight, send, recv, options));
  PLAIT_ASSIGN_OR_RETURN(const AllToAllVGmmInputGradients d,
                         back(context, group, {.dy = dy, .dshared_y = dshared_y}, a.home ? x : y.permuted, weight, send, recv, gradients, options));
  sides = {dot(y.y, dy), dot(x, d.dx), dot(weight, dw), dot(y.shared_y, dshared_y), dot(shared_x, d.dshared_x), dot(shared_weight, dshared_w)};
  return {};
}

TEST(FusedPairAdjoint, GradientsAreThoseOfTheForward) {
  for (const bool home : {false, true}) {
    for (const bool trans : {false, true}) {
      AdjointCase a{{.num_ranks = 3, .experts = 2, .k = 5, .n = 5, .load = Load::uneven, .seed = 8, .integers = true}, home, trans};
      a.c.fill_counts(7);
      std::vector<Sides> sides(3);
      EXPECT_EQ(run_pair(a.c, {.threads = 2},
                         [&](const Context& context, Group& group) {
                           return adjoint_on_rank(context, group, a, sides[static_cast<size_t>(group.rank())]);
                         }),
                "");
      Sides sum;
      for (const Sides& s : sides) {
        sum.y += s.y;
        sum.x += s.x;
        EXPECT_EQ(s.shared_y, s.shared_x) << "home " << home << " trans " << trans;
        EXPECT_EQ(s.shared_y, s.shared_weight) << "home " << home << " trans " << trans;
        sum.weight += s.weight;
      }
      EXPECT_NE(sum.y, 0);
      EXPECT_EQ(sum.y, sum.x) << "home " << home << " trans " << trans;
      EXPECT_EQ(sum.y, sum.weight) << "home " << home << " trans " << trans;
    }
  }
}

/// Null pointers where there are no rows, on every rank and on some.
TEST(FusedPairEdges, NoRowsNeedNoMemory) {
  for (const bool one_row : {false, true}) {
    PairCase c{.num_ranks = 4, .experts = 1, .k = 3, .n = 2};
    c.counts.assign(16, 0);
    if (one_row) c.counts[2] = 1;  // of rank 0, for the expert of rank 2
    EXPECT_EQ(
        run_pair(c, {},
                 [&](const Context& context, Group& group) -> Status {
                   const int rank = group.rank();
                   const std::vector<int64_t> out = c.out_counts(rank), arrive = c.arrive_counts(rank);
                   const Tensor rows = c.rows(rank, 1, c.num_home_rows(rank), 3), dy = c.rows(rank, 2, c.num_expert_rows(rank), 2);
                   auto maybe_null = [](const Tensor& t) {
                     return t.view.shape[0] == 0 ? ConstTensorView(static_cast<const void*>(nullptr), DType::f32, {0, t.view.shape[1]}) : t.view;
                   };
                   const Tensor weight = c.weight(rank), dw = make_tensor(DType::f32, {1, 3, 2});
                   PLAIT_ASSIGN_OR_RETURN(const AllToAllVGmmResult there,
                                          alltoallv_grouped_matmul(context, group, maybe_null(rows), weight, out, arrive, {.return_permuted = true}));
                   PLAIT_ASSIGN_OR_RETURN(const AllToAllVGmmInputGradients d,
                                          alltoallv_grouped_matmul_backward(context, group, {.dy = maybe_null(dy)}, there.permuted, weight, out,
                                                                            arrive, {.weight = dw}));
                   if (there.y.view.shape[0] != (one_row && rank == 2 ? 1 : 0)) return Status::internal("rows of y");
                   if (d.dx.view.shape[0] != (one_row && rank == 0 ? 1 : 0)) return Status::internal("rows of dx");
                   const bool has_gradient = one_row && rank == 2;
                   for (int64_t i = 0; i < dw.view.num_elements(); ++i) {
                     if ((get(dw, i) != 0) != has_gradient) return Status::internal("dw");
                   }
                   return {};
                 }),
        "");
  }
}

/// A gradient that is one number for all elements, as the sum's is, and one row for all rows.
TEST(FusedPairEdges, GradientsOfStrideZero) {
  const PairCase c = uneven_case(DType::f32);
  for (const bool home : {false, true}) {
    EXPECT_EQ(run_pair(c, {.threads = 2},
                       [&](const Context& context, Group& group) -> Status {
                         const int rank = group.rank();
                         const std::vector<int64_t> out = c.out_counts(rank), arrive = c.arrive_counts(rank);
                         const Tensor x = c.rows(rank, 1, c.num_expert_rows(rank), c.k), weight = c.weight(rank), row = c.rows(0, 2, 1, c.n);
                         TensorView broadcast = row;
                         broadcast.shape[0] = home ? c.num_home_rows(rank) : c.num_expert_rows(rank);
                         broadcast.strides[0] = 0;
                         const auto back = home ? grouped_matmul_alltoallv_backward : alltoallv_grouped_matmul_backward;
                         for (const int64_t column_stride : {1, 0}) {
                           broadcast.strides[1] = column_stride;
                           const Tensor dense = copy_of(broadcast), dw = make_tensor(DType::f32, {c.experts, c.k, c.n}), expected_dw = copy_of(dw);
                           const std::vector<int64_t>&send = home ? arrive : out, &recv = home ? out : arrive;
                           PLAIT_ASSIGN_OR_RETURN(const AllToAllVGmmInputGradients got,
                                                  back(context, group, {.dy = broadcast}, x, weight, send, recv, {.weight = dw}, {}));
                           PLAIT_ASSIGN_OR_RETURN(const AllToAllVGmmInputGradients expected,
                                                  back(context, group, {.dy = dense}, x, weight, send, recv, {.weight = expected_dw}, {}));
                           PLAIT_RETURN_IF_ERROR(expect_bits(got.dx, expected.dx, "dx"));
                           PLAIT_RETURN_IF_ERROR(expect_bits(dw, expected_dw, "dw"));
                         }
                         return {};
                       }),
              "");
  }
}

/// What came home lies in the window and goes out again from there.
TEST(FusedPairMemory, RowsInTheWindowAreNotCopied) {
  PairCase c{.num_ranks = 3, .experts = 2, .k = 6, .n = 6, .load = Load::uneven, .seed = 4};
  c.fill_counts(9);
  EXPECT_EQ(run_pair(c, {},
                     [&](const Context& context, Group& group) -> Status {
                       const std::vector<int64_t> out = c.out_counts(group.rank()), arrive = c.arrive_counts(group.rank());
                       const Tensor x = c.rows(group.rank(), 1, c.num_expert_rows(group.rank()), c.k), weight = c.weight(group.rank());
                       PLAIT_ASSIGN_OR_RETURN(const AllToAllVGmmResult home, grouped_matmul_alltoallv(context, group, x, weight, arrive, out));
                       const int64_t before = context.recorder().value(Counter::bytes_copied);
                       PLAIT_ASSIGN_OR_RETURN(const AllToAllVGmmResult in_place,
                                              alltoallv_grouped_matmul(context, group, home.y, weight, out, arrive));
                       const int64_t copied = context.recorder().value(Counter::bytes_copied) - before;
                       // Its own memory may be overwritten as soon as the call has returned.
                       const Tensor elsewhere = copy_of(home.y);
                       for (int64_t i = 0; i < home.y.view.num_elements(); ++i) set(home.y, i, -1);
                       PLAIT_ASSIGN_OR_RETURN(const AllToAllVGmmResult copied_first,
                                              alltoallv_grouped_matmul(context, group, elsewhere, weight, out, arrive));
                       if (copied != 0) return Status::internal(std::to_string(copied) + " bytes were copied");
                       if (context.recorder().value(Counter::bytes_copied) == before) return Status::internal("the copy was not counted");
                       return expect_bits(in_place.y, copied_first.y, "y");
                     }),
            "");
}

/// Nothing stays allocated after calls, whatever their shapes.
TEST(FusedPairMemory, CallsOfManyShapesFollowEachOther) {
  EXPECT_EQ(run_pair({.num_ranks = 2}, {.threads = 2},
                     [&](const Context& context, Group& group) -> Status {
                       for (uint64_t i = 0; i < 40; ++i) {
                         PairCase c{.num_ranks = 2, .experts = 1 + static_cast<int64_t>(i % 3), .k = 4, .n = 3, .load = all_loads[i % 6], .seed = i};
                         c.fill_counts(1 + static_cast<int64_t>(i * 7 % 30));
                         const Tensor x = c.rows(group.rank(), 1, c.num_home_rows(group.rank()), c.k), weight = c.weight(group.rank());
                         const std::vector<int64_t> out = c.out_counts(group.rank()), arrive = c.arrive_counts(group.rank());
                         PLAIT_ASSIGN_OR_RETURN(const AllToAllVGmmResult there, alltoallv_grouped_matmul(context, group, x, weight, out, arrive));
                         const Tensor dw = make_tensor(DType::f32, {c.experts, c.k, c.n});
                         PLAIT_ASSIGN_OR_RETURN(
                             const AllToAllVGmmInputGradients back,
                             alltoallv_grouped_matmul_backward(
                                 context, group, {.dy = there.y},
                                 gathered(c, {c.rows(0, 1, c.num_home_rows(0), c.k), c.rows(1, 1, c.num_home_rows(1), c.k)}, group.rank()), weight,
                                 out, arrive, {.weight = dw}));
                       }
                       PLAIT_RETURN_IF_ERROR(group.barrier("first"));
                       PLAIT_RETURN_IF_ERROR(group.barrier("second"));
                       return group.window_bytes() == 0 ? Status()
                                                        : Status::internal(std::to_string(group.window_bytes()) + " bytes of the window are in use");
                     }),
            "");
}

}  // namespace
}  // namespace plait::test
