#include "observe/inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_set.h"
#include "observe/inputs_file.h"
#include "train/parameters.h"
#include "train/random.h"
#include "train/text.h"

namespace plait {
namespace {

using train::Stream;

/// out = in, converted where the types differ.
void convert_rows(const Context& context, const ConstTensorView& in, const TensorView& out) {
  const kernels::ElementwiseKernels& elementwise = *context.kernels().elementwise;
  int64_t n = out.shape[1];
  std::vector<float> rows(static_cast<size_t>(context.threads() * n));
  context.pool().parallel_for(out.shape[0], [&](int64_t t, int worker) {
    float* row = rows.data() + worker * n;
    elementwise.load(in.dtype, in.at(t), row, n);
    elementwise.store(out.dtype, row, out.at(t), n);
  });
}

Status embed_text(const Context& context, const Case& run_case, TokenRange range, const TensorView& x) {
  PLAIT_ASSIGN_OR_RETURN(train::Text text, train::Text::load(run_case.input));
  train::ParameterSpec spec = train::embedding_spec(run_case.layer);
  PLAIT_ASSIGN_OR_RETURN(Tensor table, context.empty(spec.dtype, {spec.shape[0], spec.shape[1]}));
  train::fill_normal(context, run_case.seed, spec.id, spec.first_index, spec.scale, table);
  auto row_bytes = static_cast<size_t>(x.shape[1] * size_of(x.dtype));
  for (int64_t t = 0; t < range.count; ++t) std::memcpy(x.at(t), table.view.at(text.byte(range.first + t)), row_bytes);
  return {};
}

/// The hidden states of a file: by name, else the first floating array with H columns, else the file's only array.
Result<const FileArray*> find_hidden_states(const ArrayFile& file, int64_t hidden) {
  const FileArray* found = file.find("hidden_states");
  if (!found) found = file.find("x");
  for (const FileArray& array : file.arrays) {
    if (!found && is_floating(array.dtype) && array.num_columns() == hidden && array.shape.size() >= 2) found = &array;
  }
  if (!found && file.arrays.size() == 1) found = &file.arrays[0];
  if (!found) return Status::invalid_argument(fmt::format("{}: no array \"hidden_states\" or \"x\", and none of {} columns", file.path, hidden));
  if (!is_floating(found->dtype)) {
    return Status::invalid_argument(fmt::format("{}: hidden states of type {}: f32, bf16 or f16 are needed", file.path, name(found->dtype)));
  }
  if (found->shape.size() < 2 || found->num_columns() != hidden) {
    return Status::invalid_argument(fmt::format("{}: hidden states of shape ({}): the last of at least two dimensions must be hidden = {}", file.path,
                                                fmt::join(found->shape, ", "), hidden));
  }
  return found;
}

/// Expert ids of a file into `ids` (i32): from the array "expert_ids" of k columns, as many rows as there are hidden states.
Status read_ids(const ArrayFile& file, const FileArray& array, int64_t num_rows, TokenRange range, int64_t num_experts, const TensorView& ids) {
  int64_t k = ids.shape[1];
  bool fits = array.shape.size() >= 2 && array.num_columns() == k && array.num_rows() == num_rows;
  if (!fits || (array.dtype != DType::i32 && array.dtype != DType::i64)) {
    return Status::invalid_argument(fmt::format("{}: expert_ids of type {} and shape ({}): i32 or i64 of shape ({}, {}) are needed", file.path,
                                                name(array.dtype), fmt::join(array.shape, ", "), num_rows, k));
  }
  std::vector<std::byte> bytes(static_cast<size_t>(range.count * array.row_bytes()));
  PLAIT_RETURN_IF_ERROR(file.read_rows(array, range.first, range.count, bytes.data()));
  for (int64_t i = 0; i < range.count * k; ++i) {
    int64_t id = 0;
    std::memcpy(&id, bytes.data() + i * size_of(array.dtype), static_cast<size_t>(size_of(array.dtype)));
    if (array.dtype == DType::i32) id = static_cast<int32_t>(id);
    if (id < 0 || id >= num_experts) {
      return Status::invalid_argument(
          fmt::format("{}: expert_ids of token {}, slot {}: {} is not in [0, {})", file.path, range.first + i / k, i % k, id, num_experts));
    }
    ids.as<int32_t>()[i] = static_cast<int32_t>(id);
  }
  return {};
}

Status read_array_file(const Context& context, const Case& run_case, TokenRange range, CaseInputs& inputs) {
  int64_t hidden = run_case.layer.hidden;
  PLAIT_ASSIGN_OR_RETURN(ArrayFile file, open_array_file(run_case.input));
  PLAIT_ASSIGN_OR_RETURN(const FileArray* array, find_hidden_states(file, hidden));
  PLAIT_ASSIGN_OR_RETURN(Tensor rows, context.empty(array->dtype, {range.count, hidden}));
  PLAIT_RETURN_IF_ERROR(file.read_rows(*array, range.first, range.count, rows.view.data));
  convert_rows(context, rows, inputs.x);
  const FileArray* ids = file.find("expert_ids");
  if (!ids) return {};
  if (run_case.skew > 0) return Status::invalid_argument(fmt::format("skew = {}: {} has expert_ids; use skew 0", run_case.skew, run_case.input));
  PLAIT_ASSIGN_OR_RETURN(inputs.ids, context.empty(DType::i32, {range.count, run_case.layer.router.top_k}));
  return read_ids(file, *ids, array->num_rows(), range, run_case.layer.router.num_experts, inputs.ids);
}

}  // namespace

void zipf_ids(uint64_t seed, double exponent, int64_t num_experts, int64_t first_token, const TensorView& ids) {
  std::vector<int64_t> order(static_cast<size_t>(num_experts));
  std::iota(order.begin(), order.end(), 0);
  auto key = [&](int64_t expert) { return train::random_bits(seed, Stream::expert_order, static_cast<uint64_t>(expert)); };
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return key(a) < key(b); });
  std::vector<double> cumulative;
  for (int64_t r = 0; r < num_experts; ++r) {
    cumulative.push_back((r > 0 ? cumulative.back() : 0.0) + std::pow(static_cast<double>(r + 1), -exponent));
  }
  constexpr uint64_t max_draws = 64;  // then the most popular expert that the token has not yet
  int64_t k = ids.shape[1];
  std::vector<bool> taken;
  for (int64_t t = 0; t < ids.shape[0]; ++t) {
    taken.assign(static_cast<size_t>(num_experts), false);
    for (int64_t slot = 0; slot < k; ++slot) {
      auto entry = static_cast<uint64_t>((first_token + t) * k + slot);
      size_t place = 0;
      uint64_t draw = 0;
      do {
        double u = train::random_uniform(seed, Stream::expert_ids, entry * max_draws + draw) * cumulative.back();
        place = static_cast<size_t>(std::upper_bound(cumulative.begin(), cumulative.end() - 1, u) - cumulative.begin());
      } while (taken[place] && ++draw < max_draws);
      if (taken[place]) place = static_cast<size_t>(std::find(taken.begin(), taken.end(), false) - taken.begin());
      taken[place] = true;
      ids.as<int32_t>()[t * k + slot] = static_cast<int32_t>(order[place]);
    }
  }
}

void random_weights(uint64_t seed, int64_t first_token, const TensorView& weights) {
  int64_t k = weights.shape[1];
  for (int64_t t = 0; t < weights.shape[0]; ++t) {
    float* row = weights.as<float>() + t * k;
    float sum = 0;
    for (int64_t slot = 0; slot < k; ++slot) {
      auto entry = static_cast<uint64_t>((first_token + t) * k + slot);
      row[slot] = 0.5F + static_cast<float>(train::random_uniform(seed, Stream::expert_weights, entry));
      sum += row[slot];
    }
    for (int64_t slot = 0; slot < k; ++slot) row[slot] /= sum;
  }
}

Result<CaseInputs> make_inputs(const Context& context, const Case& run_case, TokenRange range) {
  const LayerConfig& layer = run_case.layer;
  CaseInputs inputs;
  PLAIT_ASSIGN_OR_RETURN(inputs.x, context.empty(layer.dtype, {range.count, layer.hidden}));
  PLAIT_ASSIGN_OR_RETURN(inputs.dy, context.empty(layer.dtype, {range.count, layer.hidden}));
  auto first_element = static_cast<uint64_t>(range.first * layer.hidden);
  train::fill_normal(context, run_case.seed, Stream::output_gradient, first_element, 1.0F, inputs.dy);
  if (run_case.input.empty()) {
    train::fill_normal(context, run_case.seed, Stream::input_rows, first_element, 1.0F, inputs.x);
  } else if (is_array_path(run_case.input)) {
    PLAIT_RETURN_IF_ERROR(read_array_file(context, run_case, range, inputs));
  } else {
    PLAIT_RETURN_IF_ERROR(embed_text(context, run_case, range, inputs.x));
  }
  if (run_case.skew > 0) {
    PLAIT_ASSIGN_OR_RETURN(inputs.ids, context.empty(DType::i32, {range.count, layer.router.top_k}));
    zipf_ids(run_case.seed, run_case.skew, layer.router.num_experts, range.first, inputs.ids);
  }
  if (inputs.ids.defined()) {
    PLAIT_ASSIGN_OR_RETURN(inputs.weights, context.empty(DType::f32, {range.count, layer.router.top_k}));
    random_weights(run_case.seed, range.first, inputs.weights);
  }
  return inputs;
}

}  // namespace plait
