#include "config/nearest.h"

#include <algorithm>

namespace plait {

int edit_distance(std::string_view a, std::string_view b) {
  size_t columns = b.size() + 1;
  std::vector<int> before(columns), last(columns), row(columns);
  for (size_t j = 0; j < columns; ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j < columns; ++j) {
      int substituted = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, substituted});
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[columns - 1];
}

std::string nearest_name(std::string_view word, std::span<const std::string> candidates, int limit) {
  int allowed = std::min(limit, std::max(1, static_cast<int>(word.size()) / 3));
  std::string best;
  for (const std::string& candidate : candidates) {
    int distance = edit_distance(word, candidate);
    if (distance > allowed) continue;
    allowed = distance - 1;
    best = candidate;
  }
  return best;
}

std::string join_choices(std::span<const std::string> names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += names[i];
  }
  return text;
}

}  // namespace plait
