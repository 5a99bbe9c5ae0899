"""Plait in Hugging Face transformers: importing this module registers the experts implementation "plait".

    >>> import plait.hf
    >>> model = AutoModelForCausalLM.from_config(config, experts_implementation="plait")

Where transformers has a registry of expert-parallel implementations, "plait" is one of them too (`PlaitEP`), for
`DistributedConfig(ep_implementation="plait")`. `parallelize` is for models that were built from a config.
"""

try:
    from transformers.integrations.moe import ExpertsInterface as _ExpertsInterface
except ImportError as error:
    raise ImportError("plait.hf needs Hugging Face transformers 5 or later with an experts interface: pip install 'transformers>=5.24'") from error

from plait.hf._experts import experts_forward
from plait.hf._parallelize import mean_over_ranks, parallelize, reduce_gradients

__all__ = ["experts_forward", "mean_over_ranks", "parallelize", "reduce_gradients"]

_ExpertsInterface.register("plait", experts_forward)

try:
    from transformers.distributed.expert_parallel import EPImplementationInterface as _EPImplementationInterface
except ImportError:  # before 5.24 transformers had one way only
    pass
else:
    from plait.hf._ep import PlaitEP, implementations

    for _name, _implementation in implementations().items():
        _EPImplementationInterface.register(_name, _implementation)
    __all__ += ["PlaitEP"]
