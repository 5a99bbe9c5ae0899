#include "config/case_faults.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "config/case_fields.h"
#include "config/nearest.h"

namespace plait {
namespace {

using Faults = std::vector<CaseFault>;

// Every value must pass the check of its own field: a range is written down once, in the table.
void check_each_value(const Case& of, Faults& faults) {
  for (const CaseField& field : case_fields()) {
    FieldValue value = field.get(of);
    std::string text = to_text(value);
    if (text.empty()) continue;
    bool unset_size = (field.name == "hidden" || field.name == "intermediate" || field.name == "experts" || field.name == "topk") && text == "0";
    if (unset_size) {
      faults.push_back({{field.name}, fmt::format("{} is not set: give {}, or a model for a whole shape", field.name, option_name(field.name))});
      continue;
    }
    Case scratch;
    if (Status status = set_field(field, text, scratch); !status.ok()) faults.push_back({{field.name}, status.message()});
  }
}

void check_shape(const Case& of, Faults& faults) {
  const RouterConfig& router = of.layer.router;
  if (of.ranks >= 1 && router.num_experts >= 1 && router.num_experts % of.ranks != 0) {
    faults.push_back(
        {{"experts", "ranks"},
         fmt::format("experts {} is not divisible by ranks {}: every rank holds experts / ranks experts. Use {} experts, or other ranks.",
                     router.num_experts, of.ranks, (router.num_experts + of.ranks - 1) / of.ranks * of.ranks)});
  }
  if (router.num_experts >= 1 && router.top_k > router.num_experts) {
    faults.push_back({{"topk", "experts"},
                      fmt::format("topk {} is more than experts {}: a token chooses each expert at most once", router.top_k, router.num_experts)});
  }
  if (of.layer.shared_gate && of.layer.shared_intermediate == 0) {
    faults.push_back({{"shared_gate", "shared_expert"}, "shared_gate is on, but shared_expert is 0: there is nothing to scale"});
  }
}

void check_engine(const Case& of, Faults& faults) {
  std::vector<std::string> available;
  for (Engine engine : available_engines()) available.emplace_back(name(engine));
  if (std::find(available.begin(), available.end(), name(of.engine)) != available.end()) return;
  faults.push_back({{"engine"}, fmt::format("engine {} is not in this build; available: {}", name(of.engine), join_choices(available))});
}

void check_dispatcher(const Case& of, Dispatcher dispatcher, Faults& faults) {
  std::string_view named = name(dispatcher);
  if (dispatcher == Dispatcher::mc2 && !of.fused_ops) {
    faults.push_back({{"dispatcher", "use_npu_fused_ops"},
                      "dispatcher mc2 is made of fused operators, but use_npu_fused_ops is false: set it to true, or take alltoall"});
  }
  if (!of.grouped_expert_matmul && dispatcher != Dispatcher::eager && dispatcher != Dispatcher::alltoall) {
    faults.push_back(
        {{"dispatcher", "use_grouped_expert_matmul"},
         fmt::format("dispatcher {} needs the grouped matmul, but use_grouped_expert_matmul is false: set it to true, or take eager", named)});
  }
}

void check_dispatchers(const Case& of, Faults& faults) {
  if (of.dispatchers.empty()) {
    std::vector<std::string> names;
    for (Dispatcher dispatcher : all_dispatchers()) names.emplace_back(name(dispatcher));
    faults.push_back({{"dispatcher"}, fmt::format("dispatcher is empty: name at least one of {}", join_choices(names))});
  }
  for (size_t i = 0; i < of.dispatchers.size(); ++i) {
    bool repeated = std::find(of.dispatchers.begin(), of.dispatchers.begin() + static_cast<std::ptrdiff_t>(i), of.dispatchers[i]) !=
                    of.dispatchers.begin() + static_cast<std::ptrdiff_t>(i);
    if (repeated) {
      faults.push_back({{"dispatcher"}, fmt::format("dispatcher {} is named twice: name each at most once", name(of.dispatchers[i]))});
    } else {
      check_dispatcher(of, of.dispatchers[i], faults);
    }
  }
}

}  // namespace

std::vector<CaseFault> case_faults(const Case& of) {
  Faults faults;
  check_each_value(of, faults);
  check_shape(of, faults);
  check_dispatchers(of, faults);
  check_engine(of, faults);
  if (!faults.empty()) return faults;
  if (Status status = of.layer.validate(of.ranks); !status.ok()) faults.push_back({{}, status.message()});
  return faults;
}

std::span<const Engine> available_engines() {
  static constexpr Engine engines[] = {Engine::threads, Engine::shm};
  return engines;
}

Status faults_status(const std::vector<std::string>& faults) {
  if (faults.empty()) return {};
  if (faults.size() == 1) return Status::invalid_argument(faults.front());
  return Status::invalid_argument(fmt::format("{} faults:\n  {}", faults.size(), fmt::join(faults, "\n  ")));
}

Status Case::validate() const {
  std::vector<std::string> texts;
  for (CaseFault& fault : case_faults(*this)) texts.push_back(std::move(fault.text));
  return faults_status(texts);
}

}  // namespace plait
