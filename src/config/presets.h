#pragma once
/// The shape presets behind `--model` and `model_id`.

#include <string>
#include <vector>

#include "plait/config.h"

namespace plait {

struct Preset {
  std::string name;
  std::string family;  ///< the `model_id` of training stacks that means this preset
  LayerConfig layer;
};
const std::vector<Preset>& presets();

}  // namespace plait
