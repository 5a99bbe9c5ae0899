#pragma once
/// Exchange of counts and the RoutingPlan: everything that follows from expert ids, built once per call, used by dispatch, combine and backward.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plait/context.h"
#include "plait/group.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait {

/// Expert g lives on rank owner(g) as local expert local(g). The only place where that is decided.
struct ExpertPlacement {
  int64_t num_experts = 0;
  int num_ranks = 1;

  int64_t experts_per_rank() const { return num_experts / num_ranks; }
  int owner(int64_t expert) const { return static_cast<int>(expert / experts_per_rank()); }
  int64_t local(int64_t expert) const { return expert % experts_per_rank(); }
  int64_t global(int rank, int64_t local_expert) const { return rank * experts_per_rank() + local_expert; }
  /// E % R == 0 and E >= R: the error names both numbers.
  Status validate() const;
};

/// What every rank must agree on before rows move. A rank that differs is named with both values.
struct CallSignature {
  std::string operation;  ///< "moe_forward", "alltoallv_grouped_matmul", ...
  std::string dispatcher;
  DType dtype = DType::f32;
  int64_t num_experts = 0, k = 0, hidden = 0, intermediate = 0;
  bool homeward = false;    ///< rows travel from their experts home: what local_counts counts is received (for messages)
  bool in_contract = true;  ///< inside the bit contract (numerics.md section 8)
  std::string detail;       ///< anything else that must be equal, as text
  static constexpr size_t num_notes = 5;
  std::array<int64_t, num_notes> notes{};  ///< not compared: what this rank tells the others beside its counts
};

/// The matrix C (R,E): rows that rank s has for expert g.
struct CountsMatrix {
  ExpertPlacement placement;
  std::vector<int64_t> counts;                                            ///< R*E, row major
  std::vector<std::array<int64_t, CallSignature::num_notes>> notes = {};  ///< R, as the ranks gave them
  int64_t at(int source, int64_t expert) const { return counts[static_cast<size_t>(source * placement.num_experts + expert)]; }
};

/// Views of the regions that all ranks published: [place][rank].
using PublishedViews = decltype(Exchange::regions);

/// One exchange: every rank's local_counts (E) become C on every rank, checked before any row moves. `send_counts`/`recv_counts`-style
/// callers pass `expected_recv` (R*e, rank major, expert minor) or an empty span; a difference between what s sends and what d expects is
/// an error on ALL ranks naming both ranks, the expert and both numbers. `publish` is published with it; the views come back in `views`,
/// indexed as Exchange::regions is.
Result<CountsMatrix> exchange_counts(Group& group, const ExpertPlacement& placement, const CallSignature& signature,
                                     std::span<const int64_t> local_counts, std::span<const int64_t> expected_recv,
                                     std::span<const Region> publish = {}, PublishedViews* views = nullptr);

/// Offsets of rows on both sides of the exchange. Sender order: by global expert. Receiver order: local expert major, source rank minor.
class RoutingPlan {
 public:
  RoutingPlan() = default;
  RoutingPlan(CountsMatrix counts, int rank);

  const ExpertPlacement& placement() const { return counts_.placement; }
  const CountsMatrix& counts() const { return counts_; }
  int rank() const { return rank_; }
  int64_t num_send_rows() const { return num_send_rows(rank_); }
  int64_t num_recv_rows() const { return num_recv_rows(rank_); }
  /// First row, in `source`'s permuted order, of its rows for global expert g.
  int64_t send_begin(int source, int64_t expert) const { return send_begin_[static_cast<size_t>(source * (placement().num_experts + 1) + expert)]; }
  /// First row, in `owner`'s expert-major order, of the block (local expert j, source s).
  int64_t recv_begin(int owner, int64_t local_expert, int source) const {
    return recv_begin_[static_cast<size_t>((owner * placement().experts_per_rank() + local_expert) * placement().num_ranks + source)];
  }
  /// All rows that leave `source`, and all rows that arrive at `owner`.
  int64_t num_send_rows(int source) const { return send_begin(source, placement().num_experts); }
  int64_t num_recv_rows(int owner) const { return recv_rows_[static_cast<size_t>(owner)]; }
  /// Rows per local expert of this rank: the group list of its matmuls.
  std::span<const int64_t> expert_rows() const { return expert_rows_; }

 private:
  CountsMatrix counts_;
  int rank_ = 0;
  std::vector<int64_t> send_begin_;   ///< R * (E+1)
  std::vector<int64_t> recv_begin_;   ///< R * e * R (owner, local expert, source)
  std::vector<int64_t> recv_rows_;    ///< R
  std::vector<int64_t> expert_rows_;  ///< e
};

}  // namespace plait
