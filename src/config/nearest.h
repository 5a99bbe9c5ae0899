#pragma once
/// "Did you mean ...?": the nearest of a list of names.

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace plait {

/// Insertions, deletions, substitutions and swaps of neighbours that turn a into b.
int edit_distance(std::string_view a, std::string_view b);

/// The candidate closest to `word`, or "" where none is close enough to be a slip: at most 1 edit per 3 letters, and never more than `limit`.
std::string nearest_name(std::string_view word, std::span<const std::string> candidates, int limit = 3);

/// "a, b or c".
std::string join_choices(std::span<const std::string> names);

}  // namespace plait
