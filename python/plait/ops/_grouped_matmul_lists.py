"""grouped_matmul without grouping: lists, multiplied pair by pair."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from plait import _core
from plait._errors import InvalidArgument
from plait.ops._common import array, cast_like_matmul, require_dims


@torch.library.custom_op("plait::grouped_matmul_lists", mutates_args=(), device_types="cpu")
def lists(x: list[Tensor], weight: list[Tensor], bias: list[Tensor]) -> list[Tensor]:
    y = [a.new_empty(a.shape[0], b.shape[1]) for a, b in zip(x, weight, strict=True)]
    _core.grouped_matmul_lists([array(t) for t in x], [array(t) for t in weight], [array(t) for t in bias], y)
    return y


@lists.register_fake
def _(x: list[Tensor], weight: list[Tensor], bias: list[Tensor]) -> list[Tensor]:
    return [a.new_empty(a.shape[0], b.shape[1]) for a, b in zip(x, weight, strict=True)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, weight, bias = inputs
    ctx.num_items = len(x)
    ctx.save_for_backward(*x, *weight, *bias)


def _differentiate(ctx: Any, dy: list[Tensor]) -> tuple[Any, ...]:
    n, saved = ctx.num_items, ctx.saved_tensors
    gradients = [_item_gradients(dy[i], saved[i], saved[n + i], saved[2 * n + i] if len(saved) > 2 * n else None) for i in range(n)]
    dx, dw, dbias = ([item[which] for item in gradients] for which in range(3))
    return dx, dw, dbias if len(saved) > 2 * n else []


def _item_gradients(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """One pair is one group of all its rows."""
    rows = torch.tensor([x.shape[0]], dtype=torch.int64)
    one_bias = None if bias is None else bias.unsqueeze(0)
    dx, dw, dbias = torch.ops.plait.grouped_matmul_backward(
        dy, x, weight.unsqueeze(0), rows, 1, one_bias, fused=True, need_dx=True, need_dw=True, need_dbias=bias is not None
    )
    return dx, dw.squeeze(0), dbias.squeeze(0)


lists.register_autograd(_differentiate, setup_context=_save)


def multiply_lists(
    x: Tensor | Sequence[Tensor], weight: Tensor | Sequence[Tensor], bias: Tensor | Sequence[Tensor] | None
) -> list[Tensor]:
    """y[i] (M_i,N_i) = x[i] (M_i,K_i) @ weight[i] (K_i,N_i) (+ bias[i] (N_i))."""
    given = [list(part) for part in (x, weight, bias or [])]
    if len(given[0]) != len(given[1]) or len(given[2]) not in (0, len(given[0])):
        counts = f"{len(given[0])} of x, {len(given[1])} of weight, {len(given[2])} of bias"
        raise InvalidArgument(f"grouped_matmul: {counts}; the lists of group_type=-1 pair up item by item")
    for i, (a, b) in enumerate(zip(given[0], given[1], strict=True)):
        require_dims("grouped_matmul", f"x[{i}]", a, "(M,K)")
        require_dims("grouped_matmul", f"weight[{i}]", b, "(K,N)")
    return lists(*([t for t in cast_like_matmul(*part) if t is not None] for part in given))
