"""Mixture-of-Experts layers under expert parallelism on CPU machines.

`plait.ops` has the operators for PyTorch and `plait.nn` the modules; they are loaded when first used, so that the rest works without Torch.

Example:
    >>> import torch, plait
    >>> x, weight = torch.ones(3, 2), torch.ones(2, 2, 4)
    >>> plait.ops.grouped_matmul(x, weight, [2, 1]).shape
    torch.Size([3, 4])
"""

import importlib
from typing import TYPE_CHECKING, Any

from plait._core import version as __version__
from plait._errors import Error, InvalidArgument
from plait._group import Group, init, run_ranks
from plait._info import info
from plait._last_run import Run, last_run

if TYPE_CHECKING:
    from plait import nn, ops
    from plait.parallel._gradients import clip_grad_norm_, exclude_experts_from_ddp, expert_parameters, scale_expert_gradients
    from plait.parallel._optimizer_state import full_optimizer_state_dict, load_full_optimizer_state_dict
    from plait.parallel._parallelize import parallelize
    from plait.parallel._plan import EpPlan
    from plait.parallel._sharding import shard_experts
    from plait.parallel._state_dict import full_state_dict, load_full_state_dict, sharded_state_dict

# What needs Torch, and the module that has it.
_LAZY = {
    "EpPlan": "plan",
    "clip_grad_norm_": "gradients",
    "exclude_experts_from_ddp": "gradients",
    "expert_parameters": "gradients",
    "full_optimizer_state_dict": "optimizer_state",
    "full_state_dict": "state_dict",
    "load_full_optimizer_state_dict": "optimizer_state",
    "load_full_state_dict": "state_dict",
    "parallelize": "parallelize",
    "scale_expert_gradients": "gradients",
    "shard_experts": "sharding",
    "sharded_state_dict": "state_dict",
}

__all__ = [
    "EpPlan",
    "Error",
    "Group",
    "InvalidArgument",
    "Run",
    "__version__",
    "clip_grad_norm_",
    "exclude_experts_from_ddp",
    "expert_parameters",
    "full_optimizer_state_dict",
    "full_state_dict",
    "info",
    "init",
    "last_run",
    "load_full_optimizer_state_dict",
    "load_full_state_dict",
    "nn",
    "ops",
    "parallelize",
    "run_ranks",
    "scale_expert_gradients",
    "shard_experts",
    "sharded_state_dict",
]


def __getattr__(name: str) -> Any:
    if name in ("nn", "ops"):
        return importlib.import_module(f"plait.{name}")
    if name in _LAZY:
        return getattr(importlib.import_module(f"plait.parallel._{_LAZY[name]}"), name)
    raise AttributeError(f"module 'plait' has no attribute '{name}'")
