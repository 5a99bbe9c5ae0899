"""npu_swiglu: silu of the first half along a dimension, times the second half."""

from typing import Any

import torch
from torch import Tensor

from plait.compat.torch_npu._operator import Operator, invalid


def _rows(tensor: Tensor, dim: int) -> Tensor:
    """Dimension `dim` as columns, all others as rows."""
    last = tensor.movedim(dim, -1)
    return last.reshape(-1, last.shape[-1])


def _unrows(rows: Tensor, like: Tensor, dim: int) -> Tensor:
    """The inverse of `_rows` for a tensor shaped as `like` but along `dim`."""
    moved = like.movedim(dim, -1).shape
    return rows.reshape(*moved[:-1], rows.shape[-1]).movedim(-1, dim).contiguous()


def _check(input: Tensor, dim: int) -> None:
    if input.dim() == 0 or not -input.dim() <= dim < input.dim():
        raise invalid("npu_swiglu", f"dim={dim}; input has {input.dim()} dimensions")
    if input.shape[dim] % 2 != 0:
        raise invalid("npu_swiglu", f"input has {input.shape[dim]} elements along dim={dim}; it has gate and up, an even number")


def _swiglu(input: Tensor, dim: int = -1) -> Tensor:
    _check(input, dim)
    return _unrows(torch.ops.plait.activation(_rows(input, dim), "swiglu", False, 0.0, 0.0), input, dim)


def _swiglu_fake(input: Tensor, dim: int = -1) -> Tensor:
    _check(input, dim)
    shape = list(input.shape)
    shape[dim] //= 2
    return input.new_empty(shape)


def _swiglu_backward(grad_output: Tensor, input: Tensor, dim: int = -1) -> Tensor:
    _check(input, dim)
    dh = torch.ops.plait.activation_backward(_rows(grad_output, dim), _rows(input, dim), "swiglu", False, 0.0, 0.0)
    return _unrows(dh, input, dim)


def _swiglu_backward_fake(grad_output: Tensor, input: Tensor, dim: int = -1) -> Tensor:
    return input.new_empty(input.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.dim = inputs[1]


def _differentiate(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
    (input,) = ctx.saved_tensors
    return torch.ops.npu.npu_swiglu_backward(grad_output, input, ctx.dim), None


OPERATORS = {
    "npu_swiglu": Operator(_swiglu, _swiglu_fake, _differentiate, _save),
    "npu_swiglu_backward": Operator(_swiglu_backward, _swiglu_backward_fake),
}
