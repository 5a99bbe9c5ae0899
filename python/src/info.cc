#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bindings.h"
#include "errors.h"
#include "plait/context.h"
#include "plait/env.h"
#include "plait/version.h"

namespace nb = nanobind;

namespace plait::python {

void bind_info(nb::module_& module) {
  module.attr("version") = std::string(version());
  module.def("usable_cpus", &usable_cpus);
  module.def("default_tier", [] {
    Result<Tier> tier = default_tier();
    check(tier.status());
    return std::string(name(*tier));
  });
  module.def("tiers", [] {
    nb::list tiers;
    for (const TierState& state : tier_states()) tiers.append(nb::make_tuple(std::string(name(state.tier)), state.usable, state.reason));
    return tiers;
  });
  module.def("environment", [] {
    nb::list knobs;
    for (const EnvKnob& knob : env_knobs()) knobs.append(nb::make_tuple(knob.name, knob.current, knob.default_value, knob.text));
    return knobs;
  });
}

}  // namespace plait::python
