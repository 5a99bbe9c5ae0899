#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "plait/group.h"
#include "plait/routing.h"
#include "routing/signature.h"

namespace plait {
namespace {

CallSignature signature_of(int rank) {
  CallSignature s;
  s.operation = "moe_forward";
  s.dispatcher = "alltoall";
  s.dtype = DType::bf16;
  s.num_experts = 6;
  s.k = 2;
  s.hidden = 16;
  s.intermediate = 8;
  s.detail = "activation swiglu";
  (void)rank;
  return s;
}

/// Rows of rank r for expert g.
int64_t rows_of(int rank, int64_t expert) { return rank * 10 + expert; }

struct Call {
  ExpertPlacement placement{6, 3};
  CallSignature signature;
  std::vector<int64_t> counts;
  std::vector<int64_t> expected;
};

Call call_of(int rank) {
  Call call;
  call.signature = signature_of(rank);
  for (int64_t expert = 0; expert < 6; ++expert) call.counts.push_back(rows_of(rank, expert));
  for (int source = 0; source < 3; ++source) {
    for (int64_t j = 0; j < 2; ++j) call.expected.push_back(rows_of(source, rank * 2 + j));
  }
  return call;
}

/// All three ranks call; `change` may alter a rank's call. Statuses in rank order.
std::vector<Status> exchange_on_three(const std::function<void(int rank, Call&)>& change) {
  return run_ranks(3, {}, [&](Group& group) -> Status {
    Call call = call_of(group.rank());
    change(group.rank(), call);
    return exchange_counts(group, call.placement, call.signature, call.counts, call.expected).status();
  });
}

/// One message on all ranks that has all the words.
void expect_same_error(const std::vector<Status>& statuses, const std::vector<std::string>& words) {
  for (const Status& status : statuses) {
    EXPECT_FALSE(status.ok());
    for (const std::string& word : words) EXPECT_NE(status.message().find(word), std::string::npos) << word << " in: " << status.message();
  }
}

TEST(ExchangeCounts, EveryRankGetsTheMatrix) {
  const std::vector<Status> statuses = run_ranks(3, {}, [](Group& group) -> Status {
    const Call call = call_of(group.rank());
    PLAIT_ASSIGN_OR_RETURN(const CountsMatrix matrix, exchange_counts(group, call.placement, call.signature, call.counts, call.expected));
    for (int source = 0; source < 3; ++source) {
      for (int64_t expert = 0; expert < 6; ++expert) EXPECT_EQ(matrix.at(source, expert), rows_of(source, expert));
    }
    return {};
  });
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(ExchangeCounts, PublishesARegion) {
  const std::vector<Status> statuses = run_ranks(3, {}, [](Group& group) -> Status {
    const Call call = call_of(group.rank());
    PublishedViews published;
    Region region;
    if (group.rank() != 1) {
      PLAIT_ASSIGN_OR_RETURN(region, group.allocate(1));
      region.data()[0] = std::byte(group.rank() + 40);
    }
    PLAIT_RETURN_IF_ERROR(exchange_counts(group, call.placement, call.signature, call.counts, {}, {&region, 1}, &published).status());
    const std::vector<RegionView>& views = published[0];
    EXPECT_EQ(views.size(), 3U);
    EXPECT_EQ(views[0].data()[0], std::byte(40));
    EXPECT_EQ(views[1].data(), nullptr);
    EXPECT_EQ(views[2].data()[0], std::byte(42));
    return {};
  });
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(ExchangeCounts, WrongExpectationIsAnErrorOnAllRanks) {
  const std::vector<Status> statuses = exchange_on_three([](int rank, Call& call) {
    if (rank == 1) call.expected[5] = 99;  // from rank 2, local expert 1 = expert 3
  });
  expect_same_error(statuses, {"rank 2 sends 23 rows", "expert 3", "rank 1", "expects 99"});
  for (const Status& status : statuses) EXPECT_EQ(status.expert(), 3);
}

TEST(ExchangeCounts, ListsOfTheWrongOrderDoNotPass) {
  const std::vector<Status> statuses = exchange_on_three([](int, Call& call) {  // expert major instead of rank major
    const std::vector<int64_t> rank_major = call.expected;
    for (size_t source = 0; source < 3; ++source) {
      for (size_t j = 0; j < 2; ++j) call.expected[j * 3 + source] = rank_major[source * 2 + j];
    }
  });
  expect_same_error(statuses, {"send counts and receive counts must agree"});
}

TEST(ExchangeCounts, NegativeCountIsAnErrorOnAllRanks) {
  const std::vector<Status> statuses = exchange_on_three([](int rank, Call& call) {
    if (rank == 2) call.counts[4] = -7;
  });
  expect_same_error(statuses, {"rank 2", "-7", "expert 4"});
}

struct Change {
  std::string field, usual, other;
  std::function<void(Call&)> apply;
};

TEST(ExchangeCounts, EveryFieldOfTheSignatureIsCompared) {
  const std::vector<Change> changes = {
      {"operation", "moe_forward", "moe_backward", [](Call& c) { c.signature.operation = "moe_backward"; }},
      {"dispatcher", "alltoall", "mc2", [](Call& c) { c.signature.dispatcher = "mc2"; }},
      {"element type", "bf16", "f32", [](Call& c) { c.signature.dtype = DType::f32; }},
      {"number of experts", "6", "12",
       [](Call& c) {
         c.signature.num_experts = 12;
         c.placement.num_experts = 12;
         c.counts.resize(12);
         c.expected.resize(12);
       }},
      {"experts per token", "2", "4", [](Call& c) { c.signature.k = 4; }},
      {"hidden size", "16", "17", [](Call& c) { c.signature.hidden = 17; }},
      {"intermediate size", "8", "9", [](Call& c) { c.signature.intermediate = 9; }},
      {"bit contract", "yes", "no", [](Call& c) { c.signature.in_contract = false; }},
      {"expected rows", "yes", "no", [](Call& c) { c.expected.clear(); }},
      {"detail", "swiglu", "relu2", [](Call& c) { c.signature.detail = "activation relu2"; }},
  };
  for (const Change& change : changes) {
    for (int odd = 0; odd < 3; ++odd) {  // the odd one out is named, wherever it is
      const std::vector<Status> statuses = exchange_on_three([&](int rank, Call& call) {
        if (rank == odd) change.apply(call);
      });
      expect_same_error(statuses, {change.field, change.usual, change.other, "rank " + std::to_string(odd) + " has "});
      for (const Status& status : statuses) EXPECT_EQ(status.rank(), odd) << change.field;
    }
  }
}

TEST(Signature, DetailsBeyondTheFieldAreCompared) {
  CallSignature a, b;
  a.detail = std::string(400, 'x') + "a";
  b.detail = std::string(400, 'x') + "b";
  const SignatureBlock blocks[] = {pack(a), pack(b)};
  EXPECT_FALSE(compare_signatures(blocks).ok());
  const SignatureBlock same[] = {pack(a), pack(a)};
  EXPECT_TRUE(compare_signatures(same).ok());
}

TEST(ExchangeCounts, WrongLengthIsTheCallersError) {
  const std::vector<Status> statuses = run_ranks(1, {}, [](Group& group) {
    const std::vector<int64_t> counts(5);
    return exchange_counts(group, {6, 1}, signature_of(0), counts, {}).status();
  });
  EXPECT_EQ(statuses[0].code(), StatusCode::invalid_argument);
  EXPECT_NE(statuses[0].message().find("5 counts"), std::string::npos);
}

}  // namespace
}  // namespace plait
