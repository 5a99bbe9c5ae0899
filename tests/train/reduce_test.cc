#include "train/reduce.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/test_tensors.h"
#include "train_support.h"

namespace plait::train {
namespace {

std::vector<float> values_of(int rank, int64_t n) {
  test::Random random(static_cast<uint64_t>(100 + rank));
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(std::ldexp(random.uniform(-1, 1), static_cast<int>(random.below(20))));
  return values;
}

/// The definition: rank after rank, in float32.
std::vector<float> expected_sum(int ranks, int64_t n) {
  std::vector<float> sum = values_of(0, n);
  for (int rank = 1; rank < ranks; ++rank) {
    std::vector<float> term = values_of(rank, n);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += term[i];
  }
  return sum;
}

void check(int ranks, int64_t n, int threads) {
  std::vector<float> expected = expected_sum(ranks, n);
  std::vector<Status> statuses = run_ranks(ranks, {}, [&](Group& group) -> Status {
    auto context = test::make_context(threads);
    std::vector<float> values = values_of(group.rank(), n);
    Status status = all_reduce_in_rank_order(*context, group, values, "test");
    EXPECT_TRUE(values == expected) << ranks << " ranks, " << n << " values, rank " << group.rank();
    return status;
  });
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(AllReduce, SumsInRankOrder) {
  for (int ranks : {1, 2, 3, 4, 7}) {
    for (int64_t n : {0, 1, 2, 5, 1000}) check(ranks, n, 1);
  }
  check(3, 50000, 2);
}

TEST(AllReduce, MoreThanOneSlice) { check(3, 2 * reduce_slice + 17, 1); }

TEST(AllReduce, AnotherLengthIsAnErrorOnAllRanks) {
  std::vector<Status> statuses = run_ranks(2, {}, [&](Group& group) -> Status {
    auto context = test::make_context();
    std::vector<float> values(group.rank() == 0 ? 3 : 4);
    return all_reduce_in_rank_order(*context, group, values, "test");
  });
  for (const Status& status : statuses) {
    // The rank that looks first stops the group; the other finds the same or is stopped with that message.
    EXPECT_TRUE(status.code() == StatusCode::invalid_argument || status.code() == StatusCode::aborted) << status.to_string();
    EXPECT_NE(status.message().find('3'), std::string::npos);
    EXPECT_NE(status.message().find('4'), std::string::npos);
  }
}

}  // namespace
}  // namespace plait::train
