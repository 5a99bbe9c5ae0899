#pragma once
/// The check list of `plait verify`.

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "plait/config.h"
#include "plait/group.h"
#include "plait/status.h"

namespace plait {

namespace train {
class LayerParameters;
}

struct CheckLine {
  std::string section;  ///< shape, numeric, backward, routing, precision, fallback, across-ranks
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
  std::vector<int> across_ranks;  ///< also: one global batch over each of these group sizes (threads engine), same bits
  std::function<void(double done, std::string_view what)> progress;
  std::function<bool()> interrupted;
  /// Called on every rank before a dispatcher runs, and with each group size's first dispatcher across ranks; tests give one of them other
  /// weights and see the line fail.
  std::function<void(Dispatcher, int num_ranks, const train::LayerParameters&)> before_call;
};

/// Collective over the group; rank 0 gets all lines.
Result<VerifyReport> verify_case(const VerifyOptions& options, Group& group);
/// The across-ranks lines: y, dx, dweights, dW of both matmuls for one global batch on every group size. Not collective.
Result<std::vector<CheckLine>> verify_across_ranks(const VerifyOptions& options);

std::string format_lines(const VerifyReport& report);
nlohmann::ordered_json to_json(const VerifyReport& report);

}  // namespace plait
