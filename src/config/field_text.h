#pragma once
/// Text to values, strictly: the whole text must be the value. Nothing is guessed, nothing is clamped.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace plait {

std::optional<int64_t> parse_integer(std::string_view text, int64_t low, int64_t high);
std::optional<uint64_t> parse_unsigned(std::string_view text);
/// A finite decimal number, or a fraction of two whole numbers as in "1/8".
std::optional<double> parse_number(std::string_view text, double low, double high);
/// true, yes, on, 1 / false, no, off, 0 in any case.
std::optional<bool> parse_flag(std::string_view text);
/// "a, b" -> {"a", "b"}; an empty item stays an empty item.
std::vector<std::string> split_list(std::string_view text, char separator = ',');
/// The text as a shell reads it back: quoted where needed.
std::string shell_quoted(std::string_view text);
/// The number whose shortest text is that of `value`: a float read from "0.001" is shown as 0.001.
double shortest(float value);

}  // namespace plait
