#include <fmt/format.h>

#include <string>
#include <vector>

#include "plait/layer.h"

namespace plait {
namespace {

void require(std::vector<std::string>& faults, bool holds, std::string text) {
  if (!holds) faults.push_back(std::move(text));
}

void require_ok(std::vector<std::string>& faults, const Status& status) {
  if (!status.ok()) faults.push_back(status.message());
}

}  // namespace

std::string_view name(Combine combine) { return combine == Combine::exact ? "exact" : "reduced"; }

Result<Combine> parse_combine(std::string_view text) {
  for (Combine combine : {Combine::exact, Combine::reduced}) {
    if (text == name(combine)) return combine;
  }
  return Status::invalid_argument(fmt::format("combine '{}' is unknown; allowed: exact, reduced", text));
}

Status LayerConfig::validate(int num_ranks) const {
  std::vector<std::string> faults;
  require(faults, hidden >= 1, fmt::format("hidden size is {}; it must be at least 1", hidden));
  require(faults, intermediate >= 1, fmt::format("intermediate size is {}; it must be at least 1", intermediate));
  require(faults, is_floating(dtype), fmt::format("element type is {}; it must be f32, bf16 or f16", plait::name(dtype)));
  require(faults, shared_intermediate >= 0,
          fmt::format("shared expert's intermediate size is {}; it must be 0 (no shared expert) or more", shared_intermediate));
  require(faults, !shared_gate || shared_intermediate > 0, "the shared expert has a gate but no intermediate size; set shared_intermediate");
  require(faults, activation.kind != ActivationKind::swiglu_clamped || activation.limit > 0,
          fmt::format("activation limit is {}; it must be above 0", activation.limit));
  require_ok(faults, router.validate());
  require_ok(faults, ExpertPlacement{router.num_experts, num_ranks}.validate());
  return faults.empty() ? Status() : Status::invalid_argument(fmt::format("layer: {}", fmt::join(faults, "; ")));
}

}  // namespace plait
