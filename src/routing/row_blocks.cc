#include "routing/row_blocks.h"

namespace plait {
namespace {

constexpr int64_t section_alignment_bytes = 64;

/// A run of `num_rows` rows as both sides see it: its first row in the reader's region and in the owner's, of one rank pair and expert.
struct Run {
  int64_t from_row, to_row, num_rows;
};

/// Calls visit(section, peer, run) for every run between this rank and its peers that is not empty.
template <typename RunOf, typename Visit>
void for_each_run(const RoutingPlan& plan, size_t num_sections, RunOf run_of, Visit visit) {
  for (size_t section = 0; section < num_sections; ++section) {
    for (int peer = 0; peer < plan.placement().num_ranks; ++peer) {
      for (int64_t j = 0; j < plan.placement().experts_per_rank(); ++j) {
        const Run run = run_of(peer, j);
        if (run.num_rows > 0) visit(section, peer, run);
      }
    }
  }
}

/// Rows of `source` for local expert j of `owner`: permuted place, expert-major place, count.
Run run_between(const RoutingPlan& plan, int source, int owner, int64_t j) {
  const int64_t expert = plan.placement().global(owner, j);
  return {plan.send_begin(source, expert), plan.recv_begin(owner, j, source), plan.counts().at(source, expert)};
}

Run reversed(const Run& run) { return {run.to_row, run.from_row, run.num_rows}; }

/// `outgoing(peer, j)` and `incoming(peer, j)` give the runs that this rank sends and receives; `rows_of(peer)` the rows of a sender's region.
template <typename Outgoing, typename Incoming, typename RowsOf>
RowBlocks make_blocks(const RoutingPlan& plan, std::span<const int64_t> row_bytes, std::span<std::byte* const> destinations, Outgoing outgoing,
                      Incoming incoming, RowsOf rows_of) {
  std::vector<SectionLayout> layouts;
  layouts.reserve(static_cast<size_t>(plan.placement().num_ranks));
  for (int peer = 0; peer < plan.placement().num_ranks; ++peer) layouts.emplace_back(rows_of(peer), row_bytes);
  RowBlocks blocks;
  for_each_run(plan, row_bytes.size(), outgoing, [&](size_t section, int peer, const Run& run) {
    const int64_t begin = layouts[static_cast<size_t>(plan.rank())].offset(section);
    blocks.send.push_back({peer, begin + run.from_row * row_bytes[section], run.num_rows * row_bytes[section]});
  });
  for_each_run(plan, row_bytes.size(), incoming, [&](size_t section, int peer, const Run& run) {
    const int64_t begin = layouts[static_cast<size_t>(peer)].offset(section);
    blocks.recv.push_back({peer, begin + run.from_row * row_bytes[section], run.num_rows * row_bytes[section],
                           destinations[section] + run.to_row * row_bytes[section]});
  });
  return blocks;
}

}  // namespace

SectionLayout::SectionLayout(int64_t num_rows, std::span<const int64_t> row_bytes) : num_rows_(num_rows) {
  for (int64_t bytes : row_bytes) add_section(num_rows * bytes);
}

SectionLayout SectionLayout::of_bytes(std::span<const int64_t> section_bytes) {
  SectionLayout layout(0, {});
  for (int64_t bytes : section_bytes) layout.add_section(bytes);
  return layout;
}

void SectionLayout::add_section(int64_t bytes) {
  offsets_.back() = (offsets_.back() + section_alignment_bytes - 1) / section_alignment_bytes * section_alignment_bytes;
  offsets_.push_back(offsets_.back() + bytes);
}

RowBlocks dispatch_blocks(const RoutingPlan& plan, std::span<const int64_t> row_bytes, std::span<std::byte* const> destinations) {
  auto outgoing = [&](int peer, int64_t j) { return run_between(plan, plan.rank(), peer, j); };
  auto incoming = [&](int peer, int64_t j) { return run_between(plan, peer, plan.rank(), j); };
  return make_blocks(plan, row_bytes, destinations, outgoing, incoming, [&](int peer) { return plan.num_send_rows(peer); });
}

RowBlocks combine_blocks(const RoutingPlan& plan, std::span<const int64_t> row_bytes, std::span<std::byte* const> destinations) {
  auto outgoing = [&](int peer, int64_t j) { return reversed(run_between(plan, peer, plan.rank(), j)); };
  auto incoming = [&](int peer, int64_t j) { return reversed(run_between(plan, plan.rank(), peer, j)); };
  return make_blocks(plan, row_bytes, destinations, outgoing, incoming, [&](int peer) { return plan.num_recv_rows(peer); });
}

}  // namespace plait
