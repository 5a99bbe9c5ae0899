"""The operators in the namespace `npu`."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from plait.compat.torch_npu import _activation, _exchange, _gating, _grouped_matmul, _permute, _permute_map, _routing
from plait.compat.torch_npu._autograd import autograd_kernel
from plait.compat.torch_npu._operator import Operator
from plait.compat.torch_npu._schemas import SCHEMAS

_PARTS = (_activation, _exchange, _gating, _grouped_matmul, _permute, _permute_map, _routing)
OPERATORS: dict[str, Operator] = {name: operator for part in _PARTS for name, operator in part.OPERATORS.items()}
NAMES = tuple(dict.fromkeys(schema.split("(")[0].split(".")[0] for schema in SCHEMAS))  #: without overloads


def _plain(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Without autograd, which is above it, and without autocast, of which these operators know nothing. Results are contiguous."""

    @functools.wraps(kernel)
    def run(*arguments: Any, **named: Any) -> Any:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            result = kernel(*arguments, **named)
            if isinstance(result, Tensor):
                return _contiguous(result)
            return type(result)(_contiguous(part) for part in result)

    return run


def _contiguous(result: Tensor | None) -> Tensor | None:
    return result if result is None else result.contiguous()


def define_operators() -> torch.library.Library:
    """All of them; they live as long as the library that is returned."""
    library = torch.library.Library("npu", "FRAGMENT")
    for schema in SCHEMAS:
        library.define(schema)
        name = schema.split("(")[0]
        _register(library, name, OPERATORS[name])
    return library


def _register(library: torch.library.Library, name: str, operator: Operator) -> None:
    if operator.fake is None:
        library.impl(name, operator.kernel, "CompositeImplicitAutograd")
        return
    packet, _, overload = name.partition(".")
    found = getattr(getattr(torch.ops.npu, packet), overload or "default")
    library.impl(name, operator.kernel if found._schema.is_mutable else _plain(operator.kernel), "CPU")
    torch.library.register_fake(f"npu::{name}", operator.fake, lib=library)
    if not found._schema.is_mutable:
        library.impl(name, autograd_kernel(found, operator), "Autograd", with_keyset=True)
