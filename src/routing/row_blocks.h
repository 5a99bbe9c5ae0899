#pragma once
/// Where rows lie in a region that travels, and which runs of them go where. Offsets are made here only, for allocation and for use.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plait/group.h"
#include "plait/routing.h"

namespace plait {

/// A region that holds several sections, each aligned to 64 bytes: of `num_rows` rows each (say those of dy and their weights), or of sizes
/// of their own.
class SectionLayout {
 public:
  SectionLayout(int64_t num_rows, std::span<const int64_t> row_bytes);
  static SectionLayout of_bytes(std::span<const int64_t> section_bytes);
  int64_t num_rows() const { return num_rows_; }
  int64_t offset(size_t section) const { return offsets_[section]; }
  int64_t bytes() const { return offsets_.back(); }

 private:
  void add_section(int64_t bytes);

  int64_t num_rows_;
  std::vector<int64_t> offsets_{0};  ///< one per section, then the end
};

/// The runs of rows of one all_to_all_v, both directions, in the order on which both sides agree: sections, then experts, ascending.
struct RowBlocks {
  std::vector<SendBlock> send;
  std::vector<RecvBlock> recv;
};

/// From every rank's permuted rows (sorted by global expert) into the owners' expert-major places. `destinations[i]` is where this
/// rank's section i starts. Empty runs are left out.
RowBlocks dispatch_blocks(const RoutingPlan& plan, std::span<const int64_t> row_bytes, std::span<std::byte* const> destinations);

/// The way back: from the owners' expert-major rows into the permuted order of the rank that the rows came from.
RowBlocks combine_blocks(const RoutingPlan& plan, std::span<const int64_t> row_bytes, std::span<std::byte* const> destinations);

}  // namespace plait
