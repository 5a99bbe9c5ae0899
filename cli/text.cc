#include "cli/text.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "cli/output.h"

namespace plait::cli {

std::vector<std::string> wrap(std::string_view text, int columns) {
  std::vector<std::string> lines(1);
  while (!text.empty()) {
    size_t end = std::min(text.find(' '), text.size());
    std::string_view word = text.substr(0, end);
    bool fits = lines.back().empty() || static_cast<int>(lines.back().size() + 1 + word.size()) <= columns;
    if (!fits) lines.emplace_back();
    if (!lines.back().empty()) lines.back() += ' ';
    lines.back() += word;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::string two_columns(std::string_view left, std::string_view right, int indent, int columns) {
  std::string out = fmt::format("  {}", left);
  bool own_line = static_cast<int>(out.size()) + 2 > indent;
  if (own_line) out += "\n";
  bool first = true;
  for (const std::string& line : wrap(right, columns - indent)) {
    size_t used = first && !own_line ? out.size() : 0;
    out += std::string(static_cast<size_t>(indent) - used, ' ') + line + "\n";
    first = false;
  }
  return out;
}

int text_columns() {
  constexpr int standard = 80, narrowest = 60, widest = 100;
  return std::clamp(terminal_columns(STDOUT_FILENO, standard), narrowest, widest);
}

}  // namespace plait::cli
