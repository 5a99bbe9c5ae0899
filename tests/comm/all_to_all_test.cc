// all_to_all_v: rows from every rank in place, whatever the counts.

#include <array>

#include "base/status_macros.h"
#include "engines.h"
#include "plait/counters.h"
#include "support/test_tensors.h"

namespace plait::test {
namespace {

using AllToAllTest = OnEngineAndSize;
INSTANTIATE_TEST_SUITE_P(Engines, AllToAllTest, testing::Combine(both_engines, all_sizes), engine_size_test_name);

/// rows[source][destination][part]: rows of `row_bytes` bytes, in `parts` blocks per pair.
struct Counts {
  int size;
  int parts;
  int64_t row_bytes;
  std::vector<int64_t> rows;
  int64_t at(int source, int destination, int part) const { return rows[static_cast<size_t>((source * size + destination) * parts + part)]; }
  int64_t sent_by(int source) const {
    int64_t sum = 0;
    for (int d = 0; d < size; ++d) {
      for (int p = 0; p < parts; ++p) sum += at(source, d, p) * row_bytes;
    }
    return sum;
  }
};

std::byte cell(int source, int destination, int part, int64_t i) { return origin(source * 16 + destination, part, i); }

/// The rows lie in the region by destination, then part; they must arrive by part, then source.
Status exchange_rows(const Context& context, Group& group, const Counts& counts) {
  const int rank = group.rank();
  Region own;
  const int64_t own_bytes = counts.sent_by(rank);
  if (own_bytes > 0) {
    PLAIT_ASSIGN_OR_RETURN(own, group.allocate(own_bytes));
  }
  std::vector<SendBlock> send;
  int64_t offset = 0;
  for (int d = 0; d < counts.size; ++d) {
    for (int p = 0; p < counts.parts; ++p) {
      const int64_t bytes = counts.at(rank, d, p) * counts.row_bytes;
      send.push_back({d, offset, bytes});
      for (int64_t i = 0; i < bytes; ++i) own.data()[offset + i] = cell(rank, d, p, i);
      offset += bytes;
    }
  }
  PLAIT_ASSIGN_OR_RETURN(const Exchange exchange, group.exchange("rows", {}, {&own, own_bytes > 0 ? size_t{1} : 0}));
  int64_t total = 0;
  for (int s = 0; s < counts.size; ++s) {
    for (int p = 0; p < counts.parts; ++p) total += counts.at(s, rank, p) * counts.row_bytes;
  }
  std::vector<std::byte> arrived(static_cast<size_t>(total), std::byte{0xee});
  std::vector<RecvBlock> recv;
  std::byte* place = total > 0 ? arrived.data() : nullptr;
  for (int p = 0; p < counts.parts; ++p) {
    for (int s = 0; s < counts.size; ++s) {
      int64_t from = 0;
      for (int d = 0; d < rank; ++d) {
        for (int q = 0; q < counts.parts; ++q) from += counts.at(s, d, q) * counts.row_bytes;
      }
      for (int q = 0; q < p; ++q) from += counts.at(s, rank, q) * counts.row_bytes;
      const int64_t bytes = counts.at(s, rank, p) * counts.row_bytes;
      recv.push_back({s, from, bytes, place});
      if (bytes > 0) place += bytes;
    }
  }
  PLAIT_RETURN_IF_ERROR(group.all_to_all_v(context, "rows", own, exchange.regions[0], send, recv));
  const std::byte* at = arrived.data();
  for (int p = 0; p < counts.parts; ++p) {
    for (int s = 0; s < counts.size; ++s) {
      for (int64_t i = 0; i < counts.at(s, rank, p) * counts.row_bytes; ++i) {
        if (*at++ != cell(s, rank, p, i)) return wrong("a row from rank " + std::to_string(s));
      }
    }
  }
  return {};
}

Counts random_counts(int size, uint64_t seed, int64_t row_bytes, int64_t most) {
  Random random(seed);
  Counts counts{size, 2, row_bytes, std::vector<int64_t>(static_cast<size_t>(size * size * 2))};
  for (int64_t& rows : counts.rows) rows = random.below(3) == 0 ? 0 : random.below(most + 1);
  return counts;
}

TEST_P(AllToAllTest, UnevenAndZeroCounts) {
  auto body = [](Group& group) -> Status {
    PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, Context::create({2, ""}));
    const int size = group.size();
    for (uint64_t seed = 0; seed < 12; ++seed) PLAIT_RETURN_IF_ERROR(exchange_rows(*context, group, random_counts(size, seed, 1 + 30 * seed, 9)));
    const Counts nothing{size, 1, 8, std::vector<int64_t>(static_cast<size_t>(size * size))};
    PLAIT_RETURN_IF_ERROR(exchange_rows(*context, group, nothing));
    Counts one_row = nothing;  // from rank 0 to the last rank only
    one_row.rows[static_cast<size_t>(size - 1)] = 1;
    PLAIT_RETURN_IF_ERROR(exchange_rows(*context, group, one_row));
    Counts all_to_first = nothing;
    for (int s = 0; s < size; ++s) all_to_first.rows[static_cast<size_t>(s * size)] = 100 * s;
    PLAIT_RETURN_IF_ERROR(exchange_rows(*context, group, all_to_first));
    return group.barrier("end");
  };
  EXPECT_EQ(first_error(run_engine(engine(), size(), {}, body)), "");
}

TEST_P(AllToAllTest, LargeBlocksAreSharedOutToThreads) {
  auto body = [](Group& group) -> Status {
    PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, Context::create({3, ""}));
    PLAIT_RETURN_IF_ERROR(exchange_rows(*context, group, random_counts(group.size(), 99, 4096, 60)));
    return group.barrier("end");
  };
  EXPECT_EQ(first_error(run_engine(engine(), size(), {}, body)), "");
}

TEST_P(AllToAllTest, BytesAreCounted) {
  auto body = [](Group& group) -> Status {
    PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, Context::create({1, ""}));
    const int size = group.size();
    const Counts counts{size, 1, 10, std::vector<int64_t>(static_cast<size_t>(size * size), 3)};
    PLAIT_RETURN_IF_ERROR(exchange_rows(*context, group, counts));
    const Recorder& recorder = context->recorder();
    if (recorder.value(Counter::bytes_sent) != 30 * (size - 1)) return wrong("bytes_sent");
    if (recorder.value(Counter::bytes_received) != 30 * (size - 1)) return wrong("bytes_received");
    if (recorder.value(Counter::bytes_copied) != 30 * size) return wrong("bytes_copied");
    return group.barrier("end");
  };
  EXPECT_EQ(first_error(run_engine(engine(), size(), {}, body)), "");
}

using AllToAllErrorTest = OnEngine;
INSTANTIATE_TEST_SUITE_P(Engines, AllToAllErrorTest, both_engines, engine_test_name);

TEST_P(AllToAllErrorTest, BlocksOutsideTheRegionStopAllRanks) {
  struct Case {
    RecvBlock block;
    const char* text;
  };
  std::array<std::byte, 128> place{};
  const std::vector<Case> cases = {
      {{0, 90, 11, place.data()}, "bytes 90 to 101 of rank 0's region, which has 100"},
      {{0, -1, 5, place.data()}, "bytes -1 to 4"},
      {{0, 0, -5, place.data()}, "bytes 0 to -5"},
      {{2, 0, 5, place.data()}, "receives from rank 2"},
      {{-1, 0, 5, place.data()}, "receives from rank -1"},
      {{0, 0, 5, nullptr}, "no place for 5 bytes from rank 0"},
  };
  for (const Case& wrong_block : cases) {
    auto body = [&](Group& group) -> Status {
      PLAIT_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, Context::create({1, ""}));
      PLAIT_ASSIGN_OR_RETURN(const Region region, group.allocate(100));
      PLAIT_ASSIGN_OR_RETURN(const Exchange exchange, group.exchange("publish", {}, {&region, 1}));
      if (group.rank() == 1) {
        const Status status = group.all_to_all_v(*context, "rows", region, exchange.regions[0], {}, std::span(&wrong_block.block, 1));
        if (status.ok() || status.stage() != "rows") return wrong("accepted: " + status.to_string());
      }
      const Status status = group.barrier("end");
      return status.message().find(wrong_block.text) != std::string::npos ? Status() : wrong(status.to_string());
    };
    EXPECT_EQ(first_error(run_engine(GetParam(), 2, {}, body)), "") << wrong_block.text;
  }
}

}  // namespace
}  // namespace plait::test
