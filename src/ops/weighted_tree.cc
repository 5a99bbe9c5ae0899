#include "ops/weighted_tree.h"

#include <utility>

namespace plait {
namespace {

bool is_present(const TreeTerm& term) { return term.row != nullptr && !(term.weighted && kernels::is_absent(term.weight)); }

kernels::SumStep step_of(const TreeTerm& term, bool joins) {
  return {.row = term.row, .type = term.type, .scaled = term.weighted, .joins = joins, .merges = 0, .weight = term.weight};
}

/// Stable; k is small and often nearly sorted.
void sort_by_expert_id(std::span<TreeTerm> terms) {
  for (size_t i = 1; i < terms.size(); ++i) {
    for (size_t j = i; j > 0 && terms[j].expert < terms[j - 1].expert; --j) std::swap(terms[j], terms[j - 1]);
  }
}

}  // namespace

int split_depth(int64_t a, int64_t b, int64_t num_experts) {
  int64_t low = 0, high = num_experts;
  for (int depth = 0;; ++depth) {
    int64_t middle = low + (high - low) / 2;
    if (a < middle && middle <= b) return depth;
    (b < middle ? high : low) = middle;
  }
}

void RowSum::add_tree(std::span<TreeTerm> terms, int64_t num_experts) {
  sort_by_expert_id(terms);
  open_splits_.clear();
  int64_t last_expert = -1;
  for (const TreeTerm& term : terms) {
    if (!is_present(term)) continue;
    bool same_leaf = term.expert == last_expert;
    if (last_expert >= 0 && !same_leaf) {
      // All nodes deeper than the one that separates the two experts are complete: their sides are added, deepest first.
      int depth = split_depth(last_expert, term.expert, num_experts);
      while (!open_splits_.empty() && open_splits_.back() > depth) {
        open_splits_.pop_back();
        ++steps_.back().merges;
      }
      open_splits_.push_back(depth);
    }
    steps_.push_back(step_of(term, same_leaf));
    last_expert = term.expert;
  }
  if (!steps_.empty()) steps_.back().merges = static_cast<uint8_t>(steps_.back().merges + open_splits_.size());
}

void RowSum::add_row(const TreeTerm& term) {
  if (is_present(term)) steps_.push_back(step_of(term, true));
}

}  // namespace plait
