"""permute and unpermute by expert ids: the operators."""

from typing import Any

import torch
from torch import Tensor

from plait import _core
from plait.ops._common import array, optional_array, require_dims, unused
from plait.ops._shapes import num_kept_rows


@torch.library.custom_op("plait::permute", mutates_args=(), device_types="cpu")
def permute_ids(
    x: Tensor, expert_ids: Tensor, num_out_rows: int, num_experts: int | None, tree: bool, sentinel: bool = False
) -> tuple[Tensor, Tensor]:
    require_dims("permute", "x", x, "(T,H)")
    require_dims("permute", "expert_ids", expert_ids, "(T,k)")
    if num_experts is None:
        num_experts = max(int(expert_ids.max()) + 1, 1) if expert_ids.numel() > 0 else 1
    rows, position = _empty_results(x, expert_ids, num_out_rows)
    _core.sort_by_expert(array(expert_ids), num_experts, sentinel, position)
    if sentinel:
        rows[int((position >= 0).sum()) :].zero_()
    _core.permute(array(x), position, expert_ids.shape[1], rows)
    return rows, position


@permute_ids.register_fake
def _(
    x: Tensor, expert_ids: Tensor, num_out_rows: int, num_experts: int | None, tree: bool, sentinel: bool = False
) -> tuple[Tensor, Tensor]:
    return _empty_results(x, expert_ids, num_out_rows)


def _empty_results(x: Tensor, expert_ids: Tensor, num_out_rows: int) -> tuple[Tensor, Tensor]:
    num_entries = expert_ids.shape[0] * expert_ids.shape[1]
    rows = x.new_empty(num_kept_rows(num_entries, num_out_rows), x.shape[1])
    return rows, expert_ids.new_empty(num_entries, dtype=torch.int32)


@torch.library.custom_op("plait::permute_backward", mutates_args=(), device_types="cpu")
def permute_backward(drows: Tensor, position: Tensor, expert_ids: Tensor, num_experts: int, tree: bool) -> Tensor:
    dx = drows.new_empty(expert_ids.shape[0], drows.shape[1])
    ids = array(expert_ids) if tree else None
    _core.permute_backward(array(drows), array(position), expert_ids.shape[1], ids, num_experts, dx)
    return dx


@permute_backward.register_fake
def _(drows: Tensor, position: Tensor, expert_ids: Tensor, num_experts: int, tree: bool) -> Tensor:
    return drows.new_empty(expert_ids.shape[0], drows.shape[1])


def _save_permute(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, expert_ids, _, ctx.num_experts, ctx.tree, _ = inputs
    ctx.save_for_backward(expert_ids, output[1])


def _differentiate_permute(ctx: Any, drows: Tensor, _position: Any) -> tuple[Any, ...]:
    expert_ids, position = ctx.saved_tensors
    return permute_backward(drows, position, expert_ids, ctx.num_experts or 0, ctx.tree), None, None, None, None, None


permute_ids.register_autograd(_differentiate_permute, setup_context=_save_permute)


@torch.library.custom_op("plait::unpermute", mutates_args=(), device_types="cpu")
def unpermute_ids(
    rows: Tensor, position: Tensor, weights: Tensor | None, k: int, expert_ids: Tensor | None, num_experts: int
) -> Tensor:
    y = rows.new_empty(position.shape[0] // k, rows.shape[1])
    _core.unpermute(array(rows), array(position), k, optional_array(weights), optional_array(expert_ids), num_experts, y)
    return y


@unpermute_ids.register_fake
def _(rows: Tensor, position: Tensor, weights: Tensor | None, k: int, expert_ids: Tensor | None, num_experts: int) -> Tensor:
    return rows.new_empty(position.shape[0] // k, rows.shape[1])


@torch.library.custom_op("plait::unpermute_backward", mutates_args=(), device_types="cpu")
def unpermute_backward(
    dy: Tensor, rows: Tensor | None, position: Tensor, weights: Tensor | None, k: int, num_rows: int, need_drows: bool, need_dweights: bool
) -> tuple[Tensor, Tensor]:
    drows = dy.new_empty(num_rows, dy.shape[1]) if need_drows else None
    dweights = torch.empty_like(weights, memory_format=torch.contiguous_format) if need_dweights and weights is not None else None
    _core.unpermute_backward(array(dy), optional_array(rows), array(position), k, optional_array(weights), drows, dweights)
    return unused(dy) if drows is None else drows, unused(dy) if dweights is None else dweights


@unpermute_backward.register_fake
def _(
    dy: Tensor, rows: Tensor | None, position: Tensor, weights: Tensor | None, k: int, num_rows: int, need_drows: bool, need_dweights: bool
) -> tuple[Tensor, Tensor]:
    return (
        dy.new_empty(num_rows, dy.shape[1]) if need_drows else unused(dy),
        torch.empty_like(weights, memory_format=torch.contiguous_format) if need_dweights and weights is not None else unused(dy),
    )


def _save_unpermute(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rows, position, weights, ctx.k, _, _ = inputs
    ctx.num_rows = rows.shape[0]
    ctx.save_for_backward(None if weights is None else rows, position, weights)


def _differentiate_unpermute(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    rows, position, weights = ctx.saved_tensors
    need_drows, need_dweights = ctx.needs_input_grad[0], ctx.needs_input_grad[2]
    drows, dweights = unpermute_backward(dy, rows, position, weights, ctx.k, ctx.num_rows, need_drows, need_dweights)
    return drows if need_drows else None, None, dweights if need_dweights else None, None, None, None


unpermute_ids.register_autograd(_differentiate_unpermute, setup_context=_save_unpermute)
