#pragma once
/// The CASE of a sub-command: --config, --model and every value of a Case, made from the table of config/case_fields.h.

#include <CLI/CLI.hpp>
#include <deque>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "cli/program.h"
#include "cli/ranks.h"
#include "config/case_builder.h"

namespace plait::cli {

class CaseOptions {
 public:
  void attach(CLI::App& command);

  /// True where --config, --model or any other option of the CASE but `field` was given.
  bool any_given_but(std::string_view field) const;
  bool given(std::string_view field) const;

  /// The valid case: configs/default.yaml or --config, then --model, then the options; all faults at once, those of `program` included.
  /// The ranks of a launcher count as the case's. Notes about keys of other frameworks go to stderr, once per job.
  Result<Case> resolve(const Program& program, const Standing& standing) const;
  /// The same without a launcher and without configs/default.yaml, for sub-commands of one process. `start`: fields to start from.
  using Start = std::initializer_list<std::pair<std::string_view, std::string_view>>;
  Result<Case> resolve_alone(const Program& program, Start start) const;

 private:
  struct Value {
    const CaseField* field;
    std::string text;
    CLI::Option* option;
  };
  void add_given(CaseBuilder& builder) const;

  std::string config_;
  std::deque<Value> values_;  ///< CLI11 keeps references to the texts
};

/// The path of configs/default.yaml: beside the program's build or install tree, "" where there is none.
std::string default_config_path();

}  // namespace plait::cli
