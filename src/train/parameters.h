#pragma once
/// The parameters of one rank: values in their working type, gradients in float32, initialised from (seed, parameter, global index).

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "plait/context.h"
#include "plait/layer.h"
#include "plait/status.h"
#include "plait/tensor.h"
#include "train/random.h"

namespace plait::train {

struct ParameterSpec {
  Stream id;
  DType dtype;
  std::vector<int64_t> shape;  ///< what this rank holds; up to three dimensions
  float scale = 0;             ///< standard deviation of the initial values
  bool sharded = false;        ///< the first dimension is experts, this rank's part of them; otherwise replicated on all ranks
  uint64_t first_index = 0;    ///< global flat index of the first element held here
  bool trained = true;         ///< has a gradient
};

struct Parameter {
  ParameterSpec spec;
  Tensor value;
  TensorView gradient;  ///< float32, same shape; undefined where not trained
};

/// "dw_gate_up", "db_gate_up", ...: how results and messages name a parameter's gradient; "" for streams that are no parameters.
std::string_view gradient_name(Stream parameter);

/// Owns values and gradients. The gradients of all replicated parameters lie in one piece, so that one reduction serves them.
class ParameterSet {
 public:
  ParameterSet() = default;
  /// Values are drawn, gradients are zero. Error: resource_exhausted.
  static Result<ParameterSet> create(const Context& context, std::span<const ParameterSpec> specs, uint64_t seed);

  std::span<const Parameter> items() const { return items_; }
  /// Undefined views where the set has no such parameter or gradient.
  TensorView value(Stream id) const;
  TensorView gradient(Stream id) const;
  /// All replicated gradients, float32, in the order of items().
  std::span<float> replicated_gradients() const;
  void zero_gradients() const;

 private:
  std::vector<Parameter> items_;
  Tensor replicated_, sharded_;  ///< flat float32 gradients
};

/// What a layer of this configuration has on `rank`. A router bias belongs to topk_softmax layers with expert biases (gpt-oss), a choice
/// bias, which is not trained, to sigmoid scores (DeepSeek-V3).
std::vector<ParameterSpec> layer_parameter_specs(const LayerConfig& config, int rank, int num_ranks);
LayerWeights layer_weights(const ParameterSet& set);
/// accumulate = false: backward overwrites.
LayerGradients layer_gradients(const ParameterSet& set, bool accumulate);

/// Weights and gradients of one rank's layer. Expert g is the same whatever num_ranks.
/// Example:
///   auto layer = train::LayerParameters::create(context, config, group.rank(), group.size(), seed);
///   layer_forward(context, group, config, layer->weights(), x, y);
class LayerParameters {
 public:
  static Result<LayerParameters> create(const Context& context, const LayerConfig& config, int rank, int num_ranks, uint64_t seed);
  LayerWeights weights() const { return layer_weights(set_); }
  LayerGradients gradients(bool accumulate = false) const { return layer_gradients(set_, accumulate); }
  const ParameterSet& set() const { return set_; }

 private:
  ParameterSet set_;
};

/// Rows of the byte embedding: row b is E[b], drawn with deviation 1. Shared by training and by text as input of a measurement.
ParameterSpec embedding_spec(const LayerConfig& config);
inline constexpr int64_t num_bytes_vocabulary = 256;

}  // namespace plait::train
