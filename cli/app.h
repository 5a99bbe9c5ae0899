#pragma once
/// The program `plait`, without its main.

namespace plait::cli {

/// Parses the arguments, runs the chosen sub-command and returns the exit code: 0 done and all checks hold, 1 a check failed, 2 bad input,
/// 3 a rank failed or timed out, 130 interrupted. No exception leaves it.
int run_program(int argc, char** argv);

}  // namespace plait::cli
