"""npu_moe_token_permute_with_routing_map, its counterpart, and their gradients.

Without drop_and_pad entries are counted token by token (entry i belongs to token i // k) and rows stand expert by expert. With it every
expert has `capacity` rows, and `sorted_indices` holds the token of each row.
"""

from typing import Any

import torch
from torch import Tensor

from plait import ops
from plait.compat.torch_npu._operator import Operator, as_positions, invalid
from plait.ops._permute_ids import unpermute_backward
from plait.ops._permute_map import permute_map_backward, unpermute_map_backward

_PERMUTE = "npu_moe_token_permute_with_routing_map"
_UNPERMUTE = "npu_moe_token_unpermute_with_routing_map"


def _check_map(operator: str, routing_map: Tensor) -> Tensor:
    """As bool."""
    if routing_map.dim() != 2 or routing_map.dtype not in (torch.bool, torch.int8):
        raise invalid(operator, f"routing_map is {routing_map.dtype} of {tuple(routing_map.shape)}; it is bool or int8 of (T,E)")
    return routing_map.bool()


def _num_rows(tokens: Tensor, routing_map: Tensor, num_out_tokens: int | None, drop_and_pad: bool) -> int:
    """As many whole rounds of tokens (or of experts) as num_out_tokens holds."""
    unit = routing_map.shape[1 if drop_and_pad else 0]
    wanted = tokens.shape[0] if num_out_tokens is None else num_out_tokens
    return wanted // unit * unit if unit > 0 else 0


def _row_probs(probs: Tensor, sorted_indices: Tensor, num_experts: int) -> Tensor:
    """drop_and_pad: the weight of each row."""
    experts = torch.arange(num_experts).repeat_interleave(sorted_indices.numel() // num_experts)
    return probs[sorted_indices.long(), experts]


def _permute(
    tokens: Tensor, routing_map: Tensor, *, probs: Tensor | None = None, num_out_tokens: int | None = None, drop_and_pad: bool = False
) -> tuple[Tensor, Tensor | None, Tensor]:
    chosen = _check_map(_PERMUTE, routing_map)
    num_rows = _num_rows(tokens, routing_map, num_out_tokens, drop_and_pad)
    if drop_and_pad:
        return _permute_padded(tokens, chosen, probs, num_rows)
    if int(chosen.sum()) != num_rows:
        rule = f"routing_map has {int(chosen.sum())} true elements, but num_out_tokens={num_out_tokens} with {tokens.shape[0]} tokens makes"
        raise invalid(_PERMUTE, f"{rule} {num_rows} rows; every token has num_out_tokens / T true elements")
    rows, position = ops.permute(tokens, routing_map=chosen)
    return rows, None if probs is None else probs.t().masked_select(chosen.t()), position


def _permute_padded(tokens: Tensor, chosen: Tensor, probs: Tensor | None, num_rows: int) -> tuple[Tensor, Tensor | None, Tensor]:
    num_tokens, num_experts = chosen.shape
    capacity = num_rows // max(num_experts, 1)
    if capacity > num_tokens:
        raise invalid(_PERMUTE, f"a capacity of {capacity} rows for each expert, but only {num_tokens} tokens")
    order = chosen.t().to(torch.int8).sort(dim=1, descending=True, stable=True).indices
    sorted_indices = order[:, :capacity].reshape(-1).to(torch.int32)
    row_probs = None if probs is None else _row_probs(probs, sorted_indices, num_experts)
    return tokens.index_select(0, sorted_indices), row_probs, sorted_indices


def _permute_fake(
    tokens: Tensor, routing_map: Tensor, *, probs: Tensor | None = None, num_out_tokens: int | None = None, drop_and_pad: bool = False
) -> tuple[Tensor, Tensor | None, Tensor]:
    num_rows = _num_rows(tokens, routing_map, num_out_tokens, drop_and_pad)
    row_probs = None if probs is None else probs.new_empty(num_rows)
    return tokens.new_empty(num_rows, tokens.shape[1]), row_probs, tokens.new_empty(num_rows, dtype=torch.int32)


def _permute_grad(
    permuted_token_out_grad: Tensor,
    probs_grad: Tensor | None,
    sorted_indices: Tensor,
    routing_map: Tensor,
    experts_num: int,
    tokens_num: int,
    drop_and_pad: bool,
) -> tuple[Tensor, Tensor | None]:
    chosen = _check_map(f"{_PERMUTE}_grad", routing_map)
    drows = permuted_token_out_grad
    if drop_and_pad:
        dtokens = _add_rows(drows, sorted_indices, tokens_num)
        return dtokens, None if probs_grad is None else _scatter_probs(probs_grad, sorted_indices, tokens_num, experts_num)
    dtokens = permute_map_backward(drows, as_positions(sorted_indices), chosen)
    if probs_grad is None:
        return dtokens, None
    dprobs = probs_grad.new_zeros(experts_num, tokens_num).masked_scatter_(chosen.t(), probs_grad.contiguous())
    return dtokens, dprobs.t().contiguous()


def _permute_grad_fake(
    permuted_token_out_grad: Tensor,
    probs_grad: Tensor | None,
    sorted_indices: Tensor,
    routing_map: Tensor,
    experts_num: int,
    tokens_num: int,
    drop_and_pad: bool,
) -> tuple[Tensor, Tensor | None]:
    dtokens = permuted_token_out_grad.new_empty(tokens_num, permuted_token_out_grad.shape[1])
    return dtokens, None if probs_grad is None else probs_grad.new_empty(tokens_num, experts_num)


def _add_rows(rows: Tensor, token_of_row: Tensor, num_tokens: int) -> Tensor:
    """(T,H): rows added to their tokens in the order of the rows, in float32, rounded once."""
    total = torch.zeros(num_tokens, rows.shape[1], dtype=torch.float32)
    return total.index_add_(0, token_of_row.long(), rows.float()).to(rows.dtype)


def _scatter_probs(row_values: Tensor, sorted_indices: Tensor, num_tokens: int, num_experts: int) -> Tensor:
    """The inverse of `_row_probs`: (T,E)."""
    experts = torch.arange(num_experts).repeat_interleave(sorted_indices.numel() // max(num_experts, 1))
    return row_values.new_zeros(num_tokens, num_experts).index_put_((sorted_indices.long(), experts), row_values)


def _save_permute(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor | None, Tensor]) -> None:
    tokens, routing_map, _, _, ctx.drop_and_pad = inputs
    ctx.save_for_backward(output[2], routing_map)
    ctx.num_tokens = tokens.shape[0]


def _differentiate_permute(ctx: Any, drows: Tensor, dprobs: Tensor | None, _sorted_indices: Any) -> tuple[Any, ...]:
    sorted_indices, routing_map = ctx.saved_tensors
    dtokens, dprobs = torch.ops.npu.npu_moe_token_permute_with_routing_map_grad(
        drows, dprobs, sorted_indices, routing_map, routing_map.shape[1], ctx.num_tokens, ctx.drop_and_pad
    )
    return dtokens, None, dprobs, None, None


def _positions(operator: str, sorted_indices: Tensor, routing_map: Tensor | None, probs: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Positions of the entries, token by token, and the map that says whose they are; without a map every token has as many.

    Slots marked -1 are in no map.
    """
    position = as_positions(sorted_indices)
    if routing_map is None:
        if probs is not None:
            raise invalid(operator, "routing_map is missing; with probs it tells which of them count")
        return position, None
    chosen = _check_map(operator, routing_map)
    position = position[position >= 0]
    if position.numel() != int(chosen.sum()):
        raise invalid(operator, f"{position.numel()} sorted_indices, but routing_map has {int(chosen.sum())} true elements")
    return position, chosen


def _slots(sorted_indices: Tensor, restore_shape: list[int]) -> int:
    """k, where every token has as many entries."""
    return max(sorted_indices.numel() // max(restore_shape[0], 1), 1)


def _unpermute_all(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    restore_shape: list[int],
    *,
    probs: Tensor | None = None,
    routing_map: Tensor | None = None,
    drop_and_pad: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The result, and what the gradient takes: of which row and of which token each entry is, and the weights."""
    if drop_and_pad:
        return _unpermute_padded(permuted_tokens, sorted_indices, restore_shape, probs)
    position, chosen = _positions(_UNPERMUTE, sorted_indices, routing_map, probs)
    slots = _slots(sorted_indices, restore_shape)
    if chosen is None:
        y = ops.unpermute(permuted_tokens, position, k=slots)
    else:
        y = ops.unpermute(permuted_tokens, position, probs, routing_map=chosen)
    token_of_entry = torch.arange(sorted_indices.numel(), dtype=sorted_indices.dtype) // slots
    weights = None
    if probs is not None and chosen is not None:
        weights = probs.new_zeros(sorted_indices.shape).masked_scatter_(sorted_indices >= 0, probs.masked_select(chosen))
    return y, sorted_indices.clone(), token_of_entry, weights


def _unpermute_padded(
    rows: Tensor, sorted_indices: Tensor, restore_shape: list[int], probs: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    token_of_entry, row_of_entry = sorted_indices.sort(stable=True)
    row_probs = None if probs is None else _row_probs(probs, sorted_indices, probs.shape[1])
    weighted = rows if row_probs is None else rows.float() * row_probs.float()[:, None]
    y = _add_rows(weighted.index_select(0, row_of_entry), token_of_entry, restore_shape[0])
    return y.to(rows.dtype), row_of_entry.to(sorted_indices.dtype), token_of_entry, row_probs


def _unpermute_all_fake(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    restore_shape: list[int],
    *,
    probs: Tensor | None = None,
    routing_map: Tensor | None = None,
    drop_and_pad: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    y = permuted_tokens.new_empty(restore_shape[0], restore_shape[1])
    weights = None if probs is None else probs.new_empty(sorted_indices.shape)
    return y, sorted_indices.new_empty(sorted_indices.shape), sorted_indices.new_empty(sorted_indices.shape), weights


def _unpermute(*arguments: Any, **named: Any) -> Tensor:
    """Made of the operator with the four results, which owns the derivative."""
    result: Tensor = torch.ops.npu._npu_moe_token_unpermute_with_routing_map(*arguments, **named)[0]
    return result


def _unpermute_grad(
    unpermuted_tokens_grad: Tensor,
    out_index: Tensor,
    permuted_token_id: Tensor,
    routing_map: Tensor | None,
    permuted_tokens: Tensor | None,
    probs: Tensor | None,
    drop_and_pad: bool,
    restore_shape: list[int],
) -> tuple[Tensor, Tensor | None]:
    name, dy = f"{_UNPERMUTE}_grad", unpermuted_tokens_grad
    if probs is not None and permuted_tokens is None:
        raise invalid(name, "permuted_tokens is missing; with probs it is needed for their gradient")
    num_rows = out_index.numel() if permuted_tokens is None else permuted_tokens.shape[0]
    if drop_and_pad:
        return _unpermute_padded_grad(dy, out_index.long(), permuted_token_id.long(), permuted_tokens, probs)
    position, chosen = _positions(name, out_index, routing_map, probs)
    if chosen is None:
        return unpermute_backward(dy, None, position, None, _slots(out_index, restore_shape), num_rows, True, False)[0], None
    weights = None if probs is None else probs.float()
    saved = None if probs is None else permuted_tokens
    drows, dprobs = unpermute_map_backward(dy, saved, position, chosen, weights, num_rows, True, probs is not None)
    return drows, None if probs is None else dprobs.to(dy.dtype)


def _unpermute_padded_grad(
    dy: Tensor, row_of_entry: Tensor, token_of_entry: Tensor, rows: Tensor | None, probs: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    token_of_row = torch.empty_like(token_of_entry).index_copy_(0, row_of_entry, token_of_entry)
    drows = dy.index_select(0, token_of_row)
    if probs is None or rows is None:
        return drows, None
    row_probs = _row_probs(probs, token_of_row, probs.shape[1])
    dots = (drows.float() * rows.float()).sum(1)
    return (drows.float() * row_probs.float()[:, None]).to(dy.dtype), _scatter_probs(dots, token_of_row, *probs.shape).to(dy.dtype)


def _unpermute_grad_fake(
    unpermuted_tokens_grad: Tensor,
    out_index: Tensor,
    permuted_token_id: Tensor,
    routing_map: Tensor | None,
    permuted_tokens: Tensor | None,
    probs: Tensor | None,
    drop_and_pad: bool,
    restore_shape: list[int],
) -> tuple[Tensor, Tensor | None]:
    num_rows = out_index.numel() if permuted_tokens is None else permuted_tokens.shape[0]
    drows = unpermuted_tokens_grad.new_empty(num_rows, unpermuted_tokens_grad.shape[1])
    return drows, None if probs is None else unpermuted_tokens_grad.new_empty(probs.shape)


def _save_unpermute(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor | None]) -> None:
    rows, _, ctx.restore_shape, probs, routing_map, ctx.drop_and_pad = inputs
    _, out_index, permuted_token_id, weights = output
    ctx.save_for_backward(out_index, permuted_token_id, routing_map, rows, probs)
    if weights is not None:
        ctx.mark_non_differentiable(weights)


def _differentiate_unpermute(ctx: Any, dy: Tensor, *_others: Any) -> tuple[Any, ...]:
    out_index, permuted_token_id, routing_map, rows, probs = ctx.saved_tensors
    drows, dprobs = torch.ops.npu.npu_moe_token_unpermute_with_routing_map_grad(
        dy, out_index, permuted_token_id, routing_map, rows, probs, ctx.drop_and_pad, ctx.restore_shape
    )
    return drows, None, None, None if probs is None else dprobs.to(probs.dtype), None, None


OPERATORS = {
    _PERMUTE: Operator(_permute, _permute_fake, _differentiate_permute, _save_permute),
    f"{_PERMUTE}_grad": Operator(_permute_grad, _permute_grad_fake),
    f"_{_UNPERMUTE}": Operator(_unpermute_all, _unpermute_all_fake, _differentiate_unpermute, _save_unpermute),
    _UNPERMUTE: Operator.made_of_others(_unpermute),
    f"{_UNPERMUTE}_grad": Operator(_unpermute_grad, _unpermute_grad_fake),
}
