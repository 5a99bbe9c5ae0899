#include "plait/permute.h"

#include <fmt/format.h>

#include <cstring>

#include "base/status_macros.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_set.h"
#include "ops/dense_rows.h"
#include "ops/permute_entries.h"
#include "ops/weighted_tree.h"

namespace plait {
namespace {

void clear_unnamed_rows(const Context& context, const std::vector<bool>& named, const TensorView& rows) {
  auto row_bytes = static_cast<size_t>(rows.shape[1] * size_of(rows.dtype));
  if (row_bytes == 0) return;
  for_blocks(context, rows.shape[0], static_cast<int64_t>(row_bytes), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      if (!named[static_cast<size_t>(row)]) std::memset(rows.at(row), 0, row_bytes);
    }
  });
}

/// rows[row of entry] = row of the entry's token, to the bit.
Status spread(const Context& context, const Entries& entries, std::string_view tokens_name, const ConstTensorView& tokens, std::string_view rows_name,
              const TensorView& rows) {
  PLAIT_RETURN_IF_ERROR(entries.check_pair(tokens_name, tokens, rows_name, rows));
  PLAIT_ASSIGN_OR_RETURN(std::vector<bool> named, entries.named_rows(rows.shape[0]));
  PLAIT_ASSIGN_OR_RETURN(DenseInput in, DenseInput::make(context, tokens));
  PLAIT_ASSIGN_OR_RETURN(DenseOutput out, DenseOutput::make(context, rows));
  int64_t row_bytes = rows.shape[1] * size_of(rows.dtype);
  for_blocks(context, entries.num_tokens(), entries.mean_per_token() * row_bytes, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = entries.begin(t); i < entries.end(t); ++i) {
        int64_t row = entries.row(i, rows.shape[0]);
        if (row >= 0 && row_bytes > 0) std::memcpy(out.view.at(row), in.view.at(t), static_cast<size_t>(row_bytes));
      }
    }
  });
  clear_unnamed_rows(context, named, out.view);
  out.finish(context);
  return {};
}

/// A sum over each token's rows: what is summed, and where to.
struct Reduction {
  std::string_view rows_name;
  ConstTensorView rows;
  ConstTensorView weights;  ///< undefined: 1
  ConstTensorView ids;      ///< defined: tree order over [0, num_experts); undefined: slots ascending
  int64_t num_experts = 0;
  std::string_view tokens_name;
  TensorView tokens;
};

/// What one thread keeps from token to token, on cache lines of its own.
struct alignas(64) TokenSum {
  std::vector<TreeTerm> terms;
  RowSum sum;
};

void collect_terms(const Entries& entries, const Reduction& call, const ConstTensorView& rows, int64_t token, std::vector<TreeTerm>* terms) {
  terms->clear();
  for (int64_t i = entries.begin(token); i < entries.end(token); ++i) {
    int64_t row = entries.row(i, rows.shape[0]);
    if (row < 0) continue;
    TreeTerm term{.row = rows.at(row), .type = rows.dtype, .weighted = call.weights.defined()};
    int64_t column = entries.column(token, i);
    if (term.weighted) term.weight = float_at(call.weights, token, column);
    if (call.ids.defined()) term.expert = int_at(call.ids, token, column);
    terms->push_back(term);
  }
}

Status reduce(const Context& context, const Entries& entries, const Reduction& call) {
  PLAIT_RETURN_IF_ERROR(entries.check_pair(call.tokens_name, call.tokens, call.rows_name, call.rows));
  if (!is_floating(call.rows.dtype)) {
    return Status::invalid_argument(
        fmt::format("{}: {} is {}; sums need a floating type", entries.operation(), call.rows_name, name(call.rows.dtype)));
  }
  PLAIT_RETURN_IF_ERROR(entries.check_weights("weights", call.weights));
  PLAIT_RETURN_IF_ERROR(entries.check_ids(context, call.ids, call.num_experts, call.rows.shape[0]));
  PLAIT_ASSIGN_OR_RETURN(DenseInput in, DenseInput::make(context, call.rows));
  PLAIT_ASSIGN_OR_RETURN(DenseOutput out, DenseOutput::make(context, call.tokens));
  std::vector<TokenSum> per_worker(static_cast<size_t>(context.threads()));
  int64_t token_bytes = entries.mean_per_token() * call.rows.shape[1] * size_of(call.rows.dtype);
  for_blocks(context, entries.num_tokens(), token_bytes, [&](int64_t begin, int64_t end, int worker) {
    auto& [terms, sum] = per_worker[static_cast<size_t>(worker)];
    for (int64_t t = begin; t < end; ++t) {
      collect_terms(entries, call, in.view, t, &terms);
      sum.clear();
      if (call.ids.defined()) {
        sum.add_tree(terms, call.num_experts);
      } else {
        for (const TreeTerm& term : terms) sum.add_row(term);
      }
      sum.sum(*context.kernels().elementwise, call.tokens.dtype, out.view.at(t), call.tokens.shape[1]);
    }
  });
  out.finish(context);
  return {};
}

/// drows[row of entry] = round(weight * dy of the token); an absent weight gives a row of +0.
void spread_scaled(const Context& context, const Entries& entries, const ConstTensorView& dy, const ConstTensorView& weights,
                   const TensorView& drows) {
  const kernels::ElementwiseKernels& elementwise = *context.kernels().elementwise;
  int64_t token_bytes = entries.mean_per_token() * dy.shape[1] * size_of(dy.dtype);
  for_blocks(context, entries.num_tokens(), token_bytes, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = entries.begin(t); i < entries.end(t); ++i) {
        int64_t row = entries.row(i, drows.shape[0]);
        if (row < 0) continue;
        float weight = float_at(weights, t, entries.column(t, i));
        kernels::SumStep step{.row = dy.at(t), .type = dy.dtype, .scaled = true, .weight = weight};
        elementwise.sum_rows(&step, kernels::is_absent(weight) ? 0 : 1, drows.dtype, drows.at(row), drows.shape[1]);
      }
    }
  });
}

/// dweights[t, column] = dot(dy[t], row of the entry), 0 where there is none.
void dot_entries(const Context& context, const Entries& entries, const ConstTensorView& dy, const ConstTensorView& rows, const TensorView& dweights) {
  const kernels::ElementwiseKernels& elementwise = *context.kernels().elementwise;
  auto put = [&](int64_t t, int64_t column, float value) { *reinterpret_cast<float*>(dweights.at(t, column)) = value; };
  int64_t token_bytes = entries.mean_per_token() * dy.shape[1] * size_of(dy.dtype);
  for_blocks(context, entries.num_tokens(), token_bytes, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t column = 0; column < entries.num_columns(); ++column) put(t, column, 0.0F);
      for (int64_t i = entries.begin(t); i < entries.end(t); ++i) {
        int64_t row = entries.row(i, rows.shape[0]);
        if (row >= 0) put(t, entries.column(t, i), elementwise.dot(dy.dtype, dy.at(t), rows.at(row), dy.shape[1]));
      }
    }
  });
}

Status spread_gradients(const Context& context, const Entries& entries, const ConstTensorView& dy, const ConstTensorView& rows,
                        const ConstTensorView& weights, const TensorView& drows, const TensorView& dweights) {
  PLAIT_RETURN_IF_ERROR(entries.check_weights("weights", weights));
  PLAIT_RETURN_IF_ERROR(entries.check_weights("dweights", dweights));
  if (dweights.defined()) PLAIT_RETURN_IF_ERROR(entries.check_pair("dy", dy, "rows", rows));
  if (!is_floating(dy.dtype)) {
    return Status::invalid_argument(fmt::format("{}: dy is {}; gradients need a floating type", entries.operation(), name(dy.dtype)));
  }
  if (drows.defined() && !weights.defined()) {
    PLAIT_RETURN_IF_ERROR(spread(context, entries, "dy", dy, "drows", drows));
  } else if (drows.defined()) {
    PLAIT_RETURN_IF_ERROR(entries.check_pair("dy", dy, "drows", drows));
    PLAIT_ASSIGN_OR_RETURN(std::vector<bool> named, entries.named_rows(drows.shape[0]));
    PLAIT_ASSIGN_OR_RETURN(DenseInput in, DenseInput::make(context, dy));
    PLAIT_ASSIGN_OR_RETURN(DenseOutput out, DenseOutput::make(context, drows));
    spread_scaled(context, entries, in.view, weights, out.view);
    clear_unnamed_rows(context, named, out.view);
    out.finish(context);
  }
  if (!dweights.defined()) return {};
  PLAIT_ASSIGN_OR_RETURN(DenseInput dy_in, DenseInput::make(context, dy));
  PLAIT_ASSIGN_OR_RETURN(DenseInput rows_in, DenseInput::make(context, rows));
  dot_entries(context, entries, dy_in.view, rows_in.view, dweights);
  return {};
}

}  // namespace

Status permute(const Context& context, const ConstTensorView& x, const ConstTensorView& position, int64_t k, const TensorView& rows) {
  PLAIT_ASSIGN_OR_RETURN(Entries entries, Entries::by_slot("permute", position, k));
  return spread(context, entries, "x", x, "rows", rows);
}

Status permute_backward(const Context& context, const ConstTensorView& drows, const ConstTensorView& position, int64_t k, const ConstTensorView& ids,
                        int64_t num_experts, const TensorView& dx) {
  PLAIT_ASSIGN_OR_RETURN(Entries entries, Entries::by_slot("permute_backward", position, k));
  return reduce(context, entries,
                {.rows_name = "drows", .rows = drows, .weights = {}, .ids = ids, .num_experts = num_experts, .tokens_name = "dx", .tokens = dx});
}

Status unpermute(const Context& context, const ConstTensorView& rows, const ConstTensorView& position, int64_t k, const ConstTensorView& weights,
                 const ConstTensorView& ids, int64_t num_experts, const TensorView& y) {
  PLAIT_ASSIGN_OR_RETURN(Entries entries, Entries::by_slot("unpermute", position, k));
  return reduce(context, entries,
                {.rows_name = "rows", .rows = rows, .weights = weights, .ids = ids, .num_experts = num_experts, .tokens_name = "y", .tokens = y});
}

Status unpermute_backward(const Context& context, const ConstTensorView& dy, const ConstTensorView& rows, const ConstTensorView& position, int64_t k,
                          const ConstTensorView& weights, const TensorView& drows, const TensorView& dweights) {
  PLAIT_ASSIGN_OR_RETURN(Entries entries, Entries::by_slot("unpermute_backward", position, k));
  return spread_gradients(context, entries, dy, rows, weights, drows, dweights);
}

Status permute_map(const Context& context, const ConstTensorView& x, const ConstTensorView& map, const ConstTensorView& position,
                   const TensorView& rows) {
  PLAIT_ASSIGN_OR_RETURN(Entries entries, Entries::by_map("permute_map", map, position));
  return spread(context, entries, "x", x, "rows", rows);
}

Status permute_map_backward(const Context& context, const ConstTensorView& drows, const ConstTensorView& map, const ConstTensorView& position,
                            const TensorView& dx) {
  PLAIT_ASSIGN_OR_RETURN(Entries entries, Entries::by_map("permute_map_backward", map, position));
  return reduce(context, entries, {.rows_name = "drows", .rows = drows, .weights = {}, .ids = {}, .tokens_name = "dx", .tokens = dx});
}

Status unpermute_map(const Context& context, const ConstTensorView& rows, const ConstTensorView& map, const ConstTensorView& position,
                     const ConstTensorView& weights, const TensorView& y) {
  PLAIT_ASSIGN_OR_RETURN(Entries entries, Entries::by_map("unpermute_map", map, position));
  return reduce(context, entries, {.rows_name = "rows", .rows = rows, .weights = weights, .ids = {}, .tokens_name = "y", .tokens = y});
}

Status unpermute_map_backward(const Context& context, const ConstTensorView& dy, const ConstTensorView& rows, const ConstTensorView& map,
                              const ConstTensorView& position, const ConstTensorView& weights, const TensorView& drows, const TensorView& dweights) {
  PLAIT_ASSIGN_OR_RETURN(Entries entries, Entries::by_map("unpermute_map_backward", map, position));
  return spread_gradients(context, entries, dy, rows, weights, drows, dweights);
}

}  // namespace plait
