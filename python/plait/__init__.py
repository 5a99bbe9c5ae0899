"""Mixture-of-Experts layers under expert parallelism on CPU machines.

`plait.ops` has the operators for PyTorch and `plait.nn` the modules; they are loaded when first used, so that the rest works without Torch.

Example:
    >>> import torch, plait
    >>> x, weight = torch.ones(3, 2), torch.ones(2, 2, 4)
    >>> plait.ops.grouped_matmul(x, weight, [2, 1]).shape
    torch.Size([3, 4])
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from plait._core import version as __version__
from plait._errors import Error, InvalidArgument
from plait._group import Group, init, run_ranks
from plait._info import info

if TYPE_CHECKING:
    from plait import nn, ops

__all__ = ["Error", "Group", "InvalidArgument", "__version__", "info", "init", "nn", "ops", "run_ranks"]


def __getattr__(name: str) -> ModuleType:
    if name not in ("nn", "ops"):
        raise AttributeError(f"module 'plait' has no attribute '{name}'")
    return importlib.import_module(f"plait.{name}")
