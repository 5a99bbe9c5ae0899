#pragma once
/// The flat entries of a routing, as permute and unpermute walk them: token t owns the entries [begin(t), end(t)), each with a row (its
/// position) and a column (slot, or expert in the routing-map form) of the weights.

#include <cstdint>
#include <string_view>
#include <vector>

#include "plait/context.h"
#include "plait/status.h"
#include "plait/tensor.h"

namespace plait {

class Entries {
 public:
  /// k entries per token: entry t*k + slot, column slot. `operation` starts the messages of this and of the checks below.
  static Result<Entries> by_slot(std::string_view operation, const ConstTensorView& position, int64_t k);
  /// One entry per true item of a map (T,E) u8, token major, expert minor; column = expert.
  static Result<Entries> by_map(std::string_view operation, const ConstTensorView& map, const ConstTensorView& position);

  std::string_view operation() const { return operation_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_columns() const { return num_columns_; }
  int64_t count() const { return position_.shape[0]; }
  int64_t begin(int64_t token) const { return begins_.empty() ? token * num_columns_ : begins_[static_cast<size_t>(token)]; }
  int64_t end(int64_t token) const { return begin(token + 1); }
  int64_t column(int64_t token, int64_t entry) const { return begins_.empty() ? entry - token * num_columns_ : experts_[static_cast<size_t>(entry)]; }
  int64_t expert(int64_t entry) const { return experts_[static_cast<size_t>(entry)]; }  ///< map form only
  /// The entry's row, or -1 where its position is not in [0, num_rows): it takes no part.
  int64_t row(int64_t entry, int64_t num_rows) const {
    int64_t row = position_.as<int32_t>()[entry * position_.strides[0]];
    return row < num_rows ? row : -1;
  }
  /// Entries of a token on the average, at least 1: to size blocks of work.
  int64_t mean_per_token() const { return num_tokens_ > 0 ? count() / num_tokens_ + 1 : 1; }

  /// Tokens (T,H) and rows (M,H): one type, one width.
  Status check_pair(std::string_view tokens_name, const ConstTensorView& tokens, std::string_view rows_name, const ConstTensorView& rows) const;
  /// Weights and their gradients: undefined, or f32 (tokens, columns).
  Status check_weights(std::string_view what, const ConstTensorView& view) const;
  /// Ids for a tree: undefined, or i32 (tokens, k) in [0, num_experts) wherever an entry takes part.
  Status check_ids(const Context& context, const ConstTensorView& ids, int64_t num_experts, int64_t num_rows) const;
  /// For each row whether an entry names it; two entries that name one row are an error naming both.
  Result<std::vector<bool>> named_rows(int64_t num_rows) const;

 private:
  Entries(std::string_view operation, const ConstTensorView& position) : operation_(operation), position_(position) {}
  Status check_position(int64_t expected_count) const;

  std::string_view operation_;
  ConstTensorView position_;
  int64_t num_tokens_ = 0;
  int64_t num_columns_ = 0;
  std::vector<int64_t> begins_;  ///< T + 1, map form only
  std::vector<int32_t> experts_;
};

inline float float_at(const ConstTensorView& view, int64_t i, int64_t j) { return *reinterpret_cast<const float*>(view.at(i, j)); }
inline int32_t int_at(const ConstTensorView& view, int64_t i, int64_t j) { return *reinterpret_cast<const int32_t*>(view.at(i, j)); }

}  // namespace plait
