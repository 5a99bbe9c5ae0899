"""Autograd kernels for operators of any schema: torch.library.register_autograd takes no keyword-only tensors, which these schemas have."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from plait.compat.torch_npu._operator import Operator, unavailable


def autograd_kernel(overload: torch._ops.OpOverload, operator: Operator) -> Callable[..., Any]:
    """For the Autograd key, to be registered with_keyset. What has no derivative in torch_npu says so in backward."""
    arguments = overload._schema.arguments
    returns_list = len(overload._schema.returns) == 1 and str(overload._schema.returns[0].type) == "List[Tensor]"

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        def run() -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return overload.redispatch(keyset & torch._C._after_autograd_keyset, *args, **kwargs)

        values = [*args, *(argument.default_value for argument in arguments[len(args) :])]
        for position, argument in enumerate(arguments):
            values[position] = kwargs.get(argument.name, values[position])
        tensors = _tensors_of(values)
        if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in tensors):
            return run()
        result = _Node.apply(_Call(overload, operator, run, values), *tensors)
        return list(result) if returns_list else result

    return kernel


def _tensors_of(values: list[Any]) -> list[Tensor]:
    return [tensor for value in values for tensor in (value if isinstance(value, list) else [value]) if isinstance(tensor, Tensor)]


class _Call:
    """One call on its way through autograd."""

    def __init__(self, overload: torch._ops.OpOverload, operator: Operator, run: Callable[[], Any], values: list[Any]):
        self.overload = overload
        self.operator = operator
        self.run = run
        self.values = values  # in the order of the schema; let go after the forward
        self.is_tensor = [isinstance(value, Tensor) for value in values]


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> Any:
        result = call.run()
        if call.operator.save is not None:
            call.operator.save(ctx, tuple(call.values), result)
        ctx.name, ctx.differentiate, ctx.is_tensor = call.overload._schema.name, call.operator.backward, call.is_tensor
        call.values = []
        return tuple(result) if isinstance(result, list) else result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if ctx.differentiate is None:
            raise unavailable(ctx.name, "a derivative (torch_npu has none either; call it in a torch.autograd.Function)")
        wanted = ctx.differentiate(ctx, *gradients)
        return None, *(gradient for gradient, is_tensor in zip(wanted, ctx.is_tensor, strict=True) if is_tensor)
