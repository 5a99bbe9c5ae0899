#include "config/case_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "config/case_faults.h"
#include "config/field_text.h"
#include "config/nearest.h"

namespace plait {

std::vector<Dispatcher> default_dispatchers() { return {Dispatcher::alltoall, Dispatcher::mc2}; }

namespace {

constexpr int64_t max_size = std::numeric_limits<int32_t>::max();
constexpr int64_t max_ranks = 1024;  // each is a process or a thread of this machine
constexpr std::string_view at_least_1 = "a whole number of at least 1";
constexpr std::string_view at_least_0 = "a whole number of at least 0";
constexpr std::string_view coefficient = "a number of at least 0";
constexpr std::string_view yes_or_no = "true or false";

template <typename T>
bool assign(T& to, const std::optional<std::type_identity_t<T>>& value) {
  if (value) to = *value;
  return value.has_value();
}

bool assign_size(int64_t& to, std::string_view text, int64_t low = 1) { return assign(to, parse_integer(text, low, max_size)); }

bool assign_count(int& to, std::string_view text, int64_t low, int64_t high) {
  auto value = parse_integer(text, low, high);
  if (value) to = static_cast<int>(*value);
  return value.has_value();
}

bool assign_float(float& to, std::string_view text, double low) {
  auto value = parse_number(text, low, std::numeric_limits<float>::max());
  if (value) to = static_cast<float>(*value);
  return value.has_value();
}

template <typename T>
bool assign_name(T& to, const Result<T>& value) {
  if (value.ok()) to = *value;
  return value.ok();
}

// 0 stands for "auto" in a Case.
FieldValue number_or_auto(int64_t value) { return value == 0 ? FieldValue("auto") : FieldValue(value); }

template <typename Values>
std::vector<std::string> names(const Values& values) {
  std::vector<std::string> result;
  for (auto value : values) result.emplace_back(name(value));
  return result;
}

constexpr DType row_types[] = {DType::bf16, DType::f16, DType::f32};
constexpr ScoreFunction scores[] = {ScoreFunction::softmax, ScoreFunction::sigmoid, ScoreFunction::topk_softmax};
constexpr Combine combines[] = {Combine::exact, Combine::reduced};
constexpr ActivationKind activations[] = {ActivationKind::swiglu, ActivationKind::swiglu_clamped, ActivationKind::geglu_tanh, ActivationKind::relu2};

bool assign_row_type(DType& to, std::string_view text) {
  const DType* found = std::find_if(std::begin(row_types), std::end(row_types), [&](DType type) { return name(type) == text; });
  if (found == std::end(row_types)) return false;
  to = *found;
  return true;
}

bool assign_dispatchers(std::vector<Dispatcher>& to, std::string_view text) {
  std::vector<Dispatcher> parsed;
  for (const std::string& item : split_list(text)) {
    auto dispatcher = parse_dispatcher(item);
    if (!dispatcher.ok()) return false;
    parsed.push_back(*dispatcher);
  }
  to = std::move(parsed);
  return true;
}

bool assign_router_type(bool& router_f32, std::string_view text) {
  bool f32 = text == "f32" || text == "float32";
  if (!f32 && text != "layer") return false;
  router_f32 = f32;
  return true;
}

bool assign_modules(std::vector<std::string>& to, std::string_view text) {
  std::vector<std::string> items = split_list(text, '\n');
  if (std::any_of(items.begin(), items.end(), [](const std::string& item) { return item.empty(); })) return false;
  to = std::move(items);
  return true;
}

bool assign_preset(std::string& to, std::string_view text) {
  std::vector<std::string> known = preset_names();
  if (std::find(known.begin(), known.end(), text) == known.end()) return false;
  to = text;
  return true;
}

std::vector<std::string> dispatcher_list(const Case& c) {
  std::vector<std::string> list;
  for (Dispatcher dispatcher : c.dispatchers) list.emplace_back(name(dispatcher));
  return list;
}

using Text = std::string_view;

const CaseField shape_fields[] = {
    {"model", "NAME", FieldGroup::shape, "Shape and conventions of a model", "", preset_names,
     [](Case& c, Text t) { return assign_preset(c.model, t); }, [](const Case& c) { return FieldValue(c.model); }},
    {"scale", "F", FieldGroup::shape, "Multiply the model's H and I, as in 1/8 or 0.125", "a number above 0 and at most 1, as in 1/8", nullptr,
     [](Case& c, Text t) { return assign(c.scale, parse_number(t, std::numeric_limits<double>::min(), 1)); },
     [](const Case& c) { return FieldValue(c.scale); }},
    {"tokens", "T", FieldGroup::shape, "Tokens per rank", at_least_0, nullptr, [](Case& c, Text t) { return assign_size(c.tokens, t, 0); },
     [](const Case& c) { return FieldValue(c.tokens); }},
    {"hidden", "H", FieldGroup::shape, "Columns of a token's row", at_least_1, nullptr,
     [](Case& c, Text t) { return assign_size(c.layer.hidden, t); }, [](const Case& c) { return FieldValue(c.layer.hidden); }},
    {"intermediate", "I", FieldGroup::shape, "Columns inside an expert", at_least_1, nullptr,
     [](Case& c, Text t) { return assign_size(c.layer.intermediate, t); }, [](const Case& c) { return FieldValue(c.layer.intermediate); }},
    {"experts", "E", FieldGroup::shape, "Experts of the layer, a multiple of the ranks", at_least_1, nullptr,
     [](Case& c, Text t) { return assign_size(c.layer.router.num_experts, t); },
     [](const Case& c) { return FieldValue(c.layer.router.num_experts); }},
    {"topk", "K", FieldGroup::shape, "Experts that each token chooses; at most --experts where only that is given", at_least_1, nullptr,
     [](Case& c, Text t) { return assign_size(c.layer.router.top_k, t); }, [](const Case& c) { return FieldValue(c.layer.router.top_k); }},
    {"shared_expert", "I", FieldGroup::shape, "Columns inside the shared expert, 0 for none", at_least_0, nullptr,
     [](Case& c, Text t) { return assign_size(c.layer.shared_intermediate, t, 0); },
     [](const Case& c) { return FieldValue(c.layer.shared_intermediate); }},
    {"dtype", "NAME", FieldGroup::shape, "Type of rows and weights", "", [] { return names(row_types); },
     [](Case& c, Text t) { return assign_row_type(c.layer.dtype, t); }, [](const Case& c) { return FieldValue(std::string(name(c.layer.dtype))); }},
};

const CaseField run_fields[] = {
    {"ranks", "N", FieldGroup::run, "Ranks of the group", "a whole number from 1 to 1024", nullptr,
     [](Case& c, Text t) { return assign_count(c.ranks, t, 1, max_ranks); }, [](const Case& c) { return FieldValue(int64_t{c.ranks}); }},
    {"engine", "NAME", FieldGroup::run, "Ranks are threads of one process, or processes over shared memory", "",
     [] { return names(available_engines()); }, [](Case& c, Text t) { return assign_name(c.engine, parse_engine(t)); },
     [](const Case& c) { return FieldValue(std::string(name(c.engine))); }},
    {"threads", "N", FieldGroup::run, "Threads per rank; auto: usable CPUs / ranks of this machine", "auto or a whole number from 1 to 4096", nullptr,
     [](Case& c, Text t) { return t == "auto" ? (c.threads = 0, true) : assign_count(c.threads, t, 1, 4096); },
     [](const Case& c) { return number_or_auto(c.threads); }},
    {"input", "FILE", FieldGroup::run, "Tokens: the bytes of a text, or .npy/.safetensors rows; none: random rows", "a file's name", nullptr,
     [](Case& c, Text t) { return (c.input = t, true); }, [](const Case& c) { return FieldValue(c.input); }},
    {"seed", "S", FieldGroup::run, "Seed of weights and random rows", at_least_0, nullptr,
     [](Case& c, Text t) { return assign(c.seed, parse_unsigned(t)); }, [](const Case& c) { return FieldValue(c.seed); }},
    {"skew", "Z", FieldGroup::run, "Zipf exponent of the routing, 0: uniform", coefficient, nullptr,
     [](Case& c, Text t) { return assign(c.skew, parse_number(t, 0, 100)); }, [](const Case& c) { return FieldValue(c.skew); }},
    {"backward", "", FieldGroup::run, "Run the backward pass too", yes_or_no, nullptr,
     [](Case& c, Text t) { return assign(c.backward, parse_flag(t)); }, [](const Case& c) { return FieldValue(c.backward); }},
};

const CaseField plan_fields[] = {
    {"dispatcher", "LIST", FieldGroup::plan, "What to run, comma-separated; the first is the baseline", "", [] { return names(all_dispatchers()); },
     [](Case& c, Text t) { return assign_dispatchers(c.dispatchers, t); }, [](const Case& c) { return FieldValue(dispatcher_list(c)); }},
    {"chunks", "N", FieldGroup::plan, "Token chunks of a step, or auto", "auto or a whole number of at least 1", nullptr,
     [](Case& c, Text t) { return t == "auto" ? (c.chunks = 0, true) : assign_size(c.chunks, t); },
     [](const Case& c) { return number_or_auto(c.chunks); }},
    {"combine", "NAME", FieldGroup::plan, "How allgather sends results home; reduced: one sum per token and rank, other rounding", "",
     [] { return names(combines); }, [](Case& c, Text t) { return assign_name(c.layer.combine, parse_combine(t)); },
     [](const Case& c) { return FieldValue(std::string(name(c.layer.combine))); }},
    {"recompute", "", FieldGroup::plan, "Keep only x for backward and compute the rest again", yes_or_no, nullptr,
     [](Case& c, Text t) { return assign(c.layer.recompute, parse_flag(t)); }, [](const Case& c) { return FieldValue(c.layer.recompute); }},
    {"use_npu_fused_ops", "", FieldGroup::plan, "Allow fused operators (mc2 needs them)", yes_or_no, nullptr,
     [](Case& c, Text t) { return assign(c.fused_ops, parse_flag(t)); }, [](const Case& c) { return FieldValue(c.fused_ops); }},
    {"use_grouped_expert_matmul", "", FieldGroup::plan, "Grouped matmul; off: alltoall runs as eager, a loop per expert", yes_or_no, nullptr,
     [](Case& c, Text t) { return assign(c.grouped_expert_matmul, parse_flag(t)); },
     [](const Case& c) { return FieldValue(c.grouped_expert_matmul); }},
    {"apply_modules", "LIST", FieldGroup::plan, "Module patterns of the experts in a whole model (PyTorch only)", "a list of module patterns",
     nullptr, [](Case& c, Text t) { return assign_modules(c.apply_modules, t); }, [](const Case& c) { return FieldValue(c.apply_modules); }},
};

const CaseField routing_fields[] = {
    {"score", "NAME", FieldGroup::routing, "Score function of the router", "", [] { return names(scores); },
     [](Case& c, Text t) { return assign_name(c.layer.router.score, parse_score_function(t)); },
     [](const Case& c) { return FieldValue(std::string(name(c.layer.router.score))); }},
    {"norm_topk", "", FieldGroup::routing, "Divide a token's weights by their sum", yes_or_no, nullptr,
     [](Case& c, Text t) { return assign(c.layer.router.norm_topk, parse_flag(t)); },
     [](const Case& c) { return FieldValue(c.layer.router.norm_topk); }},
    {"scaling", "F", FieldGroup::routing, "Multiply the weights after that", coefficient, nullptr,
     [](Case& c, Text t) { return assign_float(c.layer.router.scaling, t, 0); },
     [](const Case& c) { return FieldValue(shortest(c.layer.router.scaling)); }},
    {"n_group", "N", FieldGroup::routing, "Equal groups of experts, 1: no group limit", at_least_1, nullptr,
     [](Case& c, Text t) { return assign_size(c.layer.router.n_group, t); }, [](const Case& c) { return FieldValue(c.layer.router.n_group); }},
    {"topk_group", "N", FieldGroup::routing, "Groups that a token may choose from", at_least_1, nullptr,
     [](Case& c, Text t) { return assign_size(c.layer.router.topk_group, t); }, [](const Case& c) { return FieldValue(c.layer.router.topk_group); }},
    {"router_dtype", "NAME", FieldGroup::routing, "Type of the logits", "",
     [] {
       return std::vector<std::string>{"layer", "f32"};
     },
     [](Case& c, Text t) { return assign_router_type(c.layer.router_f32, t); },
     [](const Case& c) { return FieldValue(std::string(c.layer.router_f32 ? "f32" : "layer")); }},
    {"aux_loss", "F", FieldGroup::routing, "Coefficient of the load-balancing loss", coefficient, nullptr,
     [](Case& c, Text t) { return assign_float(c.layer.router.aux_loss, t, 0); },
     [](const Case& c) { return FieldValue(shortest(c.layer.router.aux_loss)); }},
    {"z_loss", "F", FieldGroup::routing, "Coefficient of the z-loss", coefficient, nullptr,
     [](Case& c, Text t) { return assign_float(c.layer.router.z_loss, t, 0); },
     [](const Case& c) { return FieldValue(shortest(c.layer.router.z_loss)); }},
    {"activation", "NAME", FieldGroup::routing, "Activation of the experts", "", [] { return names(activations); },
     [](Case& c, Text t) { return assign_name(c.layer.activation.kind, parse_activation(t)); },
     [](const Case& c) { return FieldValue(std::string(name(c.layer.activation.kind))); }},
    {"interleaved", "", FieldGroup::routing, "Columns gate, up, gate, up, ... instead of [gate | up]", yes_or_no, nullptr,
     [](Case& c, Text t) { return assign(c.layer.activation.interleaved, parse_flag(t)); },
     [](const Case& c) { return FieldValue(c.layer.activation.interleaved); }},
    {"expert_bias", "", FieldGroup::routing, "Experts with biases", yes_or_no, nullptr,
     [](Case& c, Text t) { return assign(c.layer.expert_bias, parse_flag(t)); }, [](const Case& c) { return FieldValue(c.layer.expert_bias); }},
    {"shared_gate", "", FieldGroup::routing, "Scale the shared expert by sigmoid(x . w)", yes_or_no, nullptr,
     [](Case& c, Text t) { return assign(c.layer.shared_gate, parse_flag(t)); }, [](const Case& c) { return FieldValue(c.layer.shared_gate); }},
};

std::vector<CaseField> all_fields() {
  std::vector<CaseField> all(std::begin(shape_fields), std::end(shape_fields));
  all.insert(all.end(), std::begin(run_fields), std::end(run_fields));
  all.insert(all.end(), std::begin(plan_fields), std::end(plan_fields));
  all.insert(all.end(), std::begin(routing_fields), std::end(routing_fields));
  return all;
}

std::string with_underscores(std::string_view text) {
  std::string result(text);
  std::replace(result.begin(), result.end(), '-', '_');
  return result;
}

}  // namespace

std::string_view title(FieldGroup group) {
  switch (group) {
    case FieldGroup::shape:
      return "Shape";
    case FieldGroup::run:
      return "Run";
    case FieldGroup::routing:
      return "Conventions";
    case FieldGroup::plan:
      return "Plan";
  }
  return "";
}

std::span<const CaseField> case_fields() {
  static const std::vector<CaseField> fields = all_fields();
  return fields;
}

const CaseField* find_case_field(std::string_view name) {
  std::string key = with_underscores(name);
  for (const CaseField& field : case_fields()) {
    if (field.name == key) return &field;
  }
  return nullptr;
}

std::vector<std::string> case_field_names() {
  std::vector<std::string> result;
  for (const CaseField& field : case_fields()) result.emplace_back(field.name);
  return result;
}

std::string option_name(std::string_view field) {
  std::string result = "--" + std::string(field);
  std::replace(result.begin(), result.end(), '_', '-');
  return result;
}

Status set_field(const CaseField& field, std::string_view text, Case& to) {
  if (field.set(to, text)) return {};
  std::vector<std::string> choices = field.choices != nullptr ? field.choices() : std::vector<std::string>{};
  std::string allowed = choices.empty() ? std::string(field.allowed) : join_choices(choices);
  if (field.is_flag()) choices = {"true", "false"};
  std::string near;
  for (const std::string& item : split_list(text, field.separator())) {
    bool known = std::find(choices.begin(), choices.end(), item) != choices.end();
    if (!known && near.empty()) near = nearest_name(item, choices);
  }
  std::string hint = near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near);
  return Status::invalid_argument(fmt::format("{}: \"{}\" is not allowed{} Allowed: {}.", field.name, text, hint.empty() ? "." : hint, allowed));
}

std::string to_text(const FieldValue& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::vector<std::string>>) {
          return fmt::format("{}", fmt::join(v, ","));
        } else {
          return fmt::format("{}", v);
        }
      },
      value);
}

std::string command_line_options(const Case& of) {
  Case base;
  std::string line;
  if (!of.model.empty() && apply_preset(of.model, of.scale, base).ok()) {
    line = " --model " + of.model;
    if (of.scale != 1) line += fmt::format(" --scale {}", of.scale);
  }
  for (const CaseField& field : case_fields()) {
    std::string text = to_text(field.get(of));
    if (!field.has_option() || text == to_text(field.get(base))) continue;
    std::string option = option_name(field.name);
    if (field.is_flag()) {
      line += text == "true" ? " " + option : " --no-" + option.substr(2);
    } else {
      line += fmt::format(" {} {}", option, shell_quoted(text));
    }
  }
  return line.empty() ? line : line.substr(1);
}

}  // namespace plait
