"""swiglu and its variants."""

from typing import Any

import torch
from torch import Tensor

from plait import _core
from plait._errors import InvalidArgument
from plait.ops._common import array, require_dims

_UNGATED = "relu2"


@torch.library.custom_op("plait::activation", mutates_args=(), device_types="cpu")
def activation(h: Tensor, kind: str, interleaved: bool, limit: float, alpha: float) -> Tensor:
    require_dims(kind, "h", h, "(M,I)" if kind == _UNGATED else "(M,2I)")
    if kind != _UNGATED and h.shape[1] % 2 != 0:
        raise InvalidArgument(f"{kind}: h has {h.shape[1]} columns; it has gate and up columns, an even number")
    act = _empty_result(h, kind)
    _core.activation_forward(_core.Activation(kind, interleaved, limit, alpha), array(h), act)
    return act


@activation.register_fake
def _(h: Tensor, kind: str, interleaved: bool, limit: float, alpha: float) -> Tensor:
    return _empty_result(h, kind)


def _empty_result(h: Tensor, kind: str) -> Tensor:
    return h.new_empty(h.shape[0], h.shape[1] if kind == _UNGATED else h.shape[1] // 2)


@torch.library.custom_op("plait::activation_backward", mutates_args=(), device_types="cpu")
def activation_backward(da: Tensor, h: Tensor, kind: str, interleaved: bool, limit: float, alpha: float) -> Tensor:
    dh = h.new_empty(h.shape)
    _core.activation_backward(_core.Activation(kind, interleaved, limit, alpha), array(h), array(da), dh)
    return dh


@activation_backward.register_fake
def _(da: Tensor, h: Tensor, kind: str, interleaved: bool, limit: float, alpha: float) -> Tensor:
    return h.new_empty(h.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.settings = inputs[1:]


def _differentiate(ctx: Any, da: Tensor) -> tuple[Any, ...]:
    (h,) = ctx.saved_tensors
    return activation_backward(da, h, *ctx.settings), None, None, None, None


activation.register_autograd(_differentiate, setup_context=_save)


def swiglu(h: Tensor, *, interleaved: bool = False) -> Tensor:
    """silu(gate) * up, computed in float32 and rounded once.

    Args:
        h: (M,2I): columns [gate | up], or gate, up, gate, up, ... with `interleaved`.

    Returns:
        (M,I), of h's type. Differentiable.

    Raises:
        plait.InvalidArgument: an odd number of columns, or a type that is not float32, bfloat16 or float16.

    Example:
        >>> plait.ops.swiglu(torch.tensor([[0.0, 1.0, 5.0, 2.0]])).shape
        torch.Size([1, 2])
    """
    return activation(h, "swiglu", interleaved, 0.0, 0.0)


def swiglu_clamped(h: Tensor, *, interleaved: bool = False, limit: float = 7.0, alpha: float = 1.702) -> Tensor:
    """(up + 1) * gate * sigmoid(alpha * gate) with gate <= limit and |up| <= limit, as in gpt-oss. A clamped value passes no gradient.

    Args, result and errors as `swiglu`.

    Example:
        >>> plait.ops.swiglu_clamped(torch.tensor([[10.0, -9.0]]), interleaved=True).item()
        -41.99971...
    """
    return activation(h, "swiglu_clamped", interleaved, limit, alpha)


def geglu_tanh(h: Tensor, *, interleaved: bool = False) -> Tensor:
    """gelu(gate) * up with the tanh form of gelu. Args, result and errors as `swiglu`."""
    return activation(h, "geglu_tanh", interleaved, 0.0, 0.0)


def relu2(h: Tensor) -> Tensor:
    """relu(h) squared, without a gate.

    Args:
        h: (M,I).

    Returns:
        (M,I), of h's type. Differentiable.

    Example:
        >>> plait.ops.relu2(torch.tensor([[-1.0, 3.0]])).tolist()
        [[0.0, 9.0]]
    """
    return activation(h, _UNGATED, False, 0.0, 0.0)
