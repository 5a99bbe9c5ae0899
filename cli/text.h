#pragma once
/// Text that fits a terminal.

#include <string>
#include <string_view>
#include <vector>

namespace plait::cli {

/// Breaks at spaces so that no line has more than `columns` characters (longer words stay whole).
std::vector<std::string> wrap(std::string_view text, int columns);

/// "  left         right, wrapped" with the right side starting at `indent` and nothing beyond `columns`. A left side that is too long
/// gets a line of its own.
std::string two_columns(std::string_view left, std::string_view right, int indent, int columns);

/// The width for help and tables on stdout: the terminal's, within 60 to 100; 80 for pipes.
int text_columns();

}  // namespace plait::cli
