"""permute and unpermute by a boolean routing map: the operators."""

from typing import Any

import torch
from torch import Tensor

from plait import _core
from plait._errors import InvalidArgument
from plait.ops._common import array, optional_array, require_dims, unused
from plait.ops._shapes import num_kept_rows


def _check_map(operation: str, routing_map: Tensor) -> None:
    require_dims(operation, "routing_map", routing_map, "(T,E)")
    if routing_map.dtype != torch.bool:
        raise InvalidArgument(f"{operation}: routing_map is {routing_map.dtype}; it is bool")


@torch.library.custom_op("plait::permute_map", mutates_args=(), device_types="cpu")
def permute_map(x: Tensor, routing_map: Tensor, num_out_rows: int) -> tuple[Tensor, Tensor]:
    require_dims("permute", "x", x, "(T,H)")
    _check_map("permute", routing_map)
    num_entries = int(routing_map.sum())
    position = routing_map.new_empty(num_entries, dtype=torch.int32)
    rows = x.new_empty(num_kept_rows(num_entries, num_out_rows), x.shape[1])
    _core.sort_by_map(array(routing_map), position)
    _core.permute_map(array(x), array(routing_map), position, rows)
    return rows, position


@permute_map.register_fake
def _(x: Tensor, routing_map: Tensor, num_out_rows: int) -> tuple[Tensor, Tensor]:
    context = torch.library.get_ctx()
    num_entries = context.new_dynamic_size()
    num_rows = num_entries if num_out_rows == 0 else context.new_dynamic_size()
    return x.new_empty(num_rows, x.shape[1]), routing_map.new_empty(num_entries, dtype=torch.int32)


@torch.library.custom_op("plait::permute_map_backward", mutates_args=(), device_types="cpu")
def permute_map_backward(drows: Tensor, position: Tensor, routing_map: Tensor) -> Tensor:
    dx = drows.new_empty(routing_map.shape[0], drows.shape[1])
    _core.permute_map_backward(array(drows), array(routing_map), array(position), dx)
    return dx


@permute_map_backward.register_fake
def _(drows: Tensor, position: Tensor, routing_map: Tensor) -> Tensor:
    return drows.new_empty(routing_map.shape[0], drows.shape[1])


def _save_permute(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(inputs[1], output[1])


def _differentiate_permute(ctx: Any, drows: Tensor, _position: Any) -> tuple[Any, ...]:
    routing_map, position = ctx.saved_tensors
    return permute_map_backward(drows, position, routing_map), None, None


permute_map.register_autograd(_differentiate_permute, setup_context=_save_permute)


@torch.library.custom_op("plait::unpermute_map", mutates_args=(), device_types="cpu")
def unpermute_map(rows: Tensor, position: Tensor, routing_map: Tensor, weights: Tensor | None) -> Tensor:
    _check_map("unpermute", routing_map)
    y = rows.new_empty(routing_map.shape[0], rows.shape[1])
    _core.unpermute_map(array(rows), array(routing_map), array(position), optional_array(weights), y)
    return y


@unpermute_map.register_fake
def _(rows: Tensor, position: Tensor, routing_map: Tensor, weights: Tensor | None) -> Tensor:
    return rows.new_empty(routing_map.shape[0], rows.shape[1])


@torch.library.custom_op("plait::unpermute_map_backward", mutates_args=(), device_types="cpu")
def unpermute_map_backward(
    dy: Tensor,
    rows: Tensor | None,
    position: Tensor,
    routing_map: Tensor,
    weights: Tensor | None,
    num_rows: int,
    need_drows: bool,
    need_dweights: bool,
) -> tuple[Tensor, Tensor]:
    drows = dy.new_empty(num_rows, dy.shape[1]) if need_drows else None
    dweights = torch.empty_like(weights, memory_format=torch.contiguous_format) if need_dweights and weights is not None else None
    _core.unpermute_map_backward(
        array(dy), optional_array(rows), array(routing_map), array(position), optional_array(weights), drows, dweights
    )
    return unused(dy) if drows is None else drows, unused(dy) if dweights is None else dweights


@unpermute_map_backward.register_fake
def _(
    dy: Tensor,
    rows: Tensor | None,
    position: Tensor,
    routing_map: Tensor,
    weights: Tensor | None,
    num_rows: int,
    need_drows: bool,
    need_dweights: bool,
) -> tuple[Tensor, Tensor]:
    return (
        dy.new_empty(num_rows, dy.shape[1]) if need_drows else unused(dy),
        torch.empty_like(weights, memory_format=torch.contiguous_format) if need_dweights and weights is not None else unused(dy),
    )


def _save_unpermute(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rows, position, routing_map, weights = inputs
    ctx.num_rows = rows.shape[0]
    ctx.save_for_backward(None if weights is None else rows, position, routing_map, weights)


def _differentiate_unpermute(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    rows, position, routing_map, weights = ctx.saved_tensors
    need_drows, need_dweights = ctx.needs_input_grad[0], ctx.needs_input_grad[3]
    drows, dweights = unpermute_map_backward(dy, rows, position, routing_map, weights, ctx.num_rows, need_drows, need_dweights)
    return drows if need_drows else None, None, None, dweights if need_dweights else None


unpermute_map.register_autograd(_differentiate_unpermute, setup_context=_save_unpermute)
