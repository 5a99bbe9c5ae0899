"""What one operator of the stand-in consists of, and the words it refuses with."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plait._errors import Error, InvalidArgument


class Operator(NamedTuple):
    """Kernels take the arguments of the schema by their names. Results that were not asked for are None."""

    kernel: Callable[..., Any]  #: for tensors on the CPU
    fake: Callable[..., Any] | None  #: shapes and types only, for meta and fake tensors; None: the kernel calls other operators for all
    backward: Callable[..., Any] | None = None  #: (ctx, *gradients of the results) -> gradient of each argument; None: no derivative
    save: Callable[..., None] | None = None  #: (ctx, arguments in the order of the schema, output)

    @classmethod
    def made_of_others(cls, kernel: Callable[..., Any]) -> "Operator":
        return cls(kernel, None)


def unavailable(operator: str, what: str) -> Error:
    return Error(f"{operator}: {what} is not available in plait's stand-in for torch_npu", "unavailable")


def invalid(operator: str, rule: str) -> InvalidArgument:
    return InvalidArgument(f"{operator}: {rule}")


def require_absent(operator: str, **arguments: Any) -> None:
    """For what the stand-in does not have, quantisation above all: an error that names the first argument that is given.

    Raises:
        plait.Error: with code "unavailable".
    """
    for name, value in arguments.items():
        if value is not None and value is not False and value != []:
            given = f"a tensor of {value.dtype}" if isinstance(value, Tensor) else "given" if isinstance(value, list) else repr(value)
            raise unavailable(operator, f"{name} (here {given})")


def as_positions(indices: Tensor) -> Tensor:
    """Row positions as int32, the type of the core. What int32 cannot hold stays beyond every row."""
    if indices.dtype != torch.int64:
        return indices
    limits = torch.iinfo(torch.int32)
    return indices.clamp(limits.min, limits.max).to(torch.int32)
