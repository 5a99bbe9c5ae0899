#pragma once
/// Settings of a run: the case (shape, ranks, input) from YAML, presets and the command line. docs/configuration.md.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plait/group.h"
#include "plait/layer.h"
#include "plait/status.h"

namespace plait {

/// alltoall, then mc2.
std::vector<Dispatcher> default_dispatchers();

/// One case of `plait run`, `verify` and `bench`. The table of src/config/case_fields.h gives each value its name as a YAML key, as a
/// command-line option and in JSON.
struct Case {
  std::string model;  ///< preset name, "" where none was asked for
  double scale = 1;   ///< what the preset's H and I were multiplied by
  LayerConfig layer;  ///< H, I, E, k, dtype, shared expert, ...
  int ranks = 4;
  int64_t tokens = 512;  ///< per rank
  int threads = 0;       ///< per rank; 0 = usable CPUs / ranks of this machine, at least 1
  Engine engine = Engine::shm;
  double skew = 0;    ///< Zipf exponent of the routing, 0 uniform; only where ids are not from the router
  std::string input;  ///< text, .npy or .safetensors; "" = random rows
  uint64_t seed = 0;
  bool backward = true;
  int64_t chunks = 0;                                           ///< 0 = auto
  std::vector<Dispatcher> dispatchers = default_dispatchers();  ///< the first is the baseline
  bool fused_ops = true;                                        ///< use_npu_fused_ops
  bool grouped_expert_matmul = true;
  std::vector<std::string> apply_modules;

  /// Names every impossible value, one a line: E % R, k > E, sizes < 1, mc2 without fused ops, ...
  Status validate() const;
};

/// Shape presets: qwen3_5_moe_397b, qwen3_30b_a3b, mixtral_8x7b, deepseek_v3, gpt_oss_120b, tiny.
std::vector<std::string> preset_names();
/// Replaces the layer's shape and conventions by a preset's. `scale` in (0,1] shrinks H and I. An unknown name is an error with the nearest.
Status apply_preset(std::string_view name, double scale, Case& to);

/// Reads a YAML file into a valid Case. All faults are reported at once, each with file, line, value, what is allowed and the nearest name.
/// A relative `input` is looked for beside the file.
/// `ignored` receives "file:line: key" for other frameworks' sections and keys.
Result<Case> load_case(const std::string& path, std::vector<std::string>* ignored);

}  // namespace plait
