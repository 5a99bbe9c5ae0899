#include "ops/permute_entries.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "ops/dense_rows.h"

namespace plait {

Result<Entries> Entries::by_slot(std::string_view operation, const ConstTensorView& position, int64_t k) {
  Entries entries(operation, position);
  if (k < 1) return Status::invalid_argument(fmt::format("{}: k is {}; a token has at least 1 entry", operation, k));
  entries.num_columns_ = k;
  entries.num_tokens_ = position.shape[0] / k;
  PLAIT_RETURN_IF_ERROR(entries.check_position(entries.num_tokens_ * k));
  return entries;
}

Result<Entries> Entries::by_map(std::string_view operation, const ConstTensorView& map, const ConstTensorView& position) {
  if (map.num_dims != 2 || map.dtype != DType::u8) {
    return Status::invalid_argument(fmt::format("{}: the routing map is {}; it must be u8 (tokens, experts)", operation, describe(map)));
  }
  Entries entries(operation, position);
  entries.num_tokens_ = map.shape[0];
  entries.num_columns_ = map.shape[1];
  entries.begins_.reserve(static_cast<size_t>(map.shape[0]) + 1);
  entries.begins_.push_back(0);
  for (int64_t t = 0; t < map.shape[0]; ++t) {
    for (int64_t e = 0; e < map.shape[1]; ++e) {
      if (*map.at(t, e) != std::byte{0}) entries.experts_.push_back(static_cast<int32_t>(e));
    }
    entries.begins_.push_back(static_cast<int64_t>(entries.experts_.size()));
  }
  PLAIT_RETURN_IF_ERROR(entries.check_position(entries.begins_.back()));
  return entries;
}

Status Entries::check_position(int64_t expected_count) const {
  constexpr int64_t max_entries = std::numeric_limits<int32_t>::max();
  if (position_.num_dims != 1 || position_.dtype != DType::i32 || position_.shape[0] != expected_count) {
    return Status::invalid_argument(
        fmt::format("{}: position is {}; it must be i32 ({}), one item per entry", operation_, describe(position_), expected_count));
  }
  if (expected_count <= max_entries) return {};
  return Status::invalid_argument(fmt::format("{}: {} entries; positions are 32 bit, so at most {}", operation_, expected_count, max_entries));
}

Status Entries::check_pair(std::string_view tokens_name, const ConstTensorView& tokens, std::string_view rows_name,
                           const ConstTensorView& rows) const {
  for (const auto& [what, view] : {std::pair(tokens_name, tokens), std::pair(rows_name, rows)}) {
    if (view.num_dims != 2) {
      return Status::invalid_argument(fmt::format("{}: {} is {}; it must have two dimensions", operation_, what, describe(view)));
    }
  }
  if (tokens.dtype != rows.dtype || tokens.shape[1] != rows.shape[1]) {
    return Status::invalid_argument(
        fmt::format("{}: {} is {}, {} is {}; types and columns must be equal", operation_, tokens_name, describe(tokens), rows_name, describe(rows)));
  }
  if (tokens.shape[0] == num_tokens_) return {};
  return Status::invalid_argument(
      fmt::format("{}: {} has {} rows, the entries belong to {} tokens", operation_, tokens_name, tokens.shape[0], num_tokens_));
}

Status Entries::check_weights(std::string_view what, const ConstTensorView& view) const {
  if (!view.defined()) return {};
  if (view.num_dims == 2 && view.dtype == DType::f32 && view.shape[0] == num_tokens_ && view.shape[1] == num_columns_) return {};
  return Status::invalid_argument(fmt::format("{}: {} is {}; it must be f32 ({}, {})", operation_, what, describe(view), num_tokens_, num_columns_));
}

Status Entries::check_ids(const Context& context, const ConstTensorView& ids, int64_t num_experts, int64_t num_rows) const {
  if (!ids.defined()) return {};
  if (ids.num_dims != 2 || ids.dtype != DType::i32 || ids.shape[0] != num_tokens_ || ids.shape[1] != num_columns_) {
    return Status::invalid_argument(fmt::format("{}: ids is {}; it must be i32 ({}, {})", operation_, describe(ids), num_tokens_, num_columns_));
  }
  int64_t k = num_columns_;
  int64_t bad = first_bad(context, count(), [&](int64_t i) {
    int32_t id = int_at(ids, i / k, i % k);
    return row(i, num_rows) >= 0 && (id < 0 || id >= num_experts);
  });
  if (bad < 0) return {};
  return Status::invalid_argument(fmt::format("{}: expert id of token {}, slot {} is {}; it must be in [0, {}), the number of experts", operation_,
                                              bad / k, bad % k, int_at(ids, bad / k, bad % k), num_experts));
}

Result<std::vector<bool>> Entries::named_rows(int64_t num_rows) const {
  std::vector<bool> named(static_cast<size_t>(num_rows));
  for (int64_t i = 0; i < count(); ++i) {
    int64_t r = row(i, num_rows);
    if (r < 0) continue;
    if (named[static_cast<size_t>(r)]) {
      int64_t first = 0;
      while (row(first, num_rows) != r) ++first;
      return Status::invalid_argument(
          fmt::format("{}: entries {} and {} of position both name row {}; a row has one entry", operation_, first, i, r));
    }
    named[static_cast<size_t>(r)] = true;
  }
  return named;
}

}  // namespace plait
