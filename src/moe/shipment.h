#pragma once
/// Rows that leave this rank: written once where peers can read them, then delivered straight into their places.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "moe/call.h"
#include "routing/row_blocks.h"

namespace plait::moe {

/// One kind of row in a shipment: `columns` elements of `dtype`.
struct Section {
  DType dtype;
  int64_t columns;
  int64_t row_bytes() const { return columns * size_of(dtype); }
};

/// dispatch: permuted order -> expert-major order. combine: the way back.
enum class Direction { dispatch, combine };

/// Rows on their way. They lie in a window region of exactly their size; in a group of one they lie in arena memory and are not moved,
/// because both orders are then the same.
class Shipment {
 public:
  static constexpr size_t max_sections = 3;
  using Delivered = std::array<Tensor, max_sections>;  ///< (rows, columns) per section

  static Result<Shipment> open(const LayerCall& call, int64_t num_rows, std::span<const Section> sections);

  /// The rows (num_rows, columns) of a section, to be written before the shipment is published.
  TensorView rows(size_t section) const;
  /// What the exchange that announces the shipment publishes; nothing in a group of one.
  std::span<const Region> regions() const { return {&region_, 1}; }
  /// Every rank's rows in their places here. `regions` come from the exchange that published this shipment.
  Result<Delivered> deliver(const LayerCall& call, Direction direction, const RoutingPlan& plan, std::span<const RegionView> regions) const;

 private:
  Shipment(SectionLayout layout, std::span<const Section> sections) : layout_(std::move(layout)), sections_(sections.begin(), sections.end()) {}
  std::vector<int64_t> row_bytes() const;

  SectionLayout layout_;
  std::vector<Section> sections_;
  Region region_;
  Buffer local_;  ///< group of one
};

}  // namespace plait::moe
