#include "config/field_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

namespace plait {
namespace {

template <typename T>
std::optional<T> parse_whole(std::string_view text) {
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.remove_suffix(1);
  return text;
}

std::optional<double> parse_fraction(std::string_view text) {
  size_t slash = text.find('/');
  if (slash == std::string_view::npos) return parse_whole<double>(text);
  auto above = parse_whole<int64_t>(text.substr(0, slash));
  auto below = parse_whole<int64_t>(text.substr(slash + 1));
  if (!above || !below || *below == 0) return std::nullopt;
  return static_cast<double>(*above) / static_cast<double>(*below);
}

}  // namespace

std::optional<int64_t> parse_integer(std::string_view text, int64_t low, int64_t high) {
  auto value = parse_whole<int64_t>(text);
  if (!value || *value < low || *value > high) return std::nullopt;
  return value;
}

std::optional<uint64_t> parse_unsigned(std::string_view text) { return parse_whole<uint64_t>(text); }

std::optional<double> parse_number(std::string_view text, double low, double high) {
  auto value = parse_fraction(text);
  if (!value || !std::isfinite(*value) || *value < low || *value > high) return std::nullopt;
  return value;
}

std::optional<bool> parse_flag(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (lower == "true" || lower == "yes" || lower == "on" || lower == "1") return true;
  if (lower == "false" || lower == "no" || lower == "off" || lower == "0") return false;
  return std::nullopt;
}

std::vector<std::string> split_list(std::string_view text, char separator) {
  std::vector<std::string> items;
  while (true) {
    size_t comma = text.find(separator);
    items.emplace_back(trimmed(text.substr(0, comma)));
    if (comma == std::string_view::npos) return items;
    text.remove_prefix(comma + 1);
  }
}

std::string shell_quoted(std::string_view text) {
  bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("_-./,:=+@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return std::string(text);
  std::string quoted = "'";
  for (char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

double shortest(float value) { return parse_whole<double>(fmt::format("{}", value)).value_or(value); }

}  // namespace plait
