#pragma once
/// The check list of `plait verify`.

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "plait/config.h"
#include "plait/group.h"
#include "plait/status.h"

namespace plait {

namespace train {
class LayerParameters;
class ParameterSet;
}  // namespace train

struct CheckLine {
  std::string section;  ///< one of verify_section_names()
  std::string name;
  bool ok = false;
  std::string detail;      ///< figures, or the first difference
  std::string reproducer;  ///< for a failing line: one command that shows it
};

struct VerifyReport {
  Case run_case;
  std::vector<CheckLine> lines;
  bool ok() const;
};

struct VerifyOptions {
  Case run_case;
  std::vector<std::string> sections;  ///< only these, of verify_section_names(); none: all
  std::vector<int> across_ranks;      ///< also: one global batch over each of these group sizes (threads engine), same bits
  std::function<void(double done, std::string_view what)> progress;
  std::function<bool()> interrupted;
  /// Called on every rank before a dispatcher runs, across ranks too; tests give one of them other weights and see the line fail.
  std::function<void(Dispatcher, int num_ranks, const train::LayerParameters&)> before_call;
  /// The same before each training step.
  std::function<void(Dispatcher, const train::ParameterSet&)> before_training;
};

/// shape, numeric, backward, routing, precision, performance, fallback; and across-ranks, which verify_across_ranks() makes.
std::span<const std::string> verify_section_names();

/// Collective over the group; rank 0 gets all lines. Error: a section that there is not.
Result<VerifyReport> verify_case(const VerifyOptions& options, Group& group);
/// The across-ranks lines: one global batch with every dispatcher on every group size, compared with the first dispatcher on the first size:
/// y, dx, dweights, dW and expert biases. Not collective.
Result<std::vector<CheckLine>> verify_across_ranks(const VerifyOptions& options);

std::string format_lines(const VerifyReport& report);
nlohmann::ordered_json to_json(const VerifyReport& report);

}  // namespace plait
