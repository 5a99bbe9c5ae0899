"""npu_moe_token_permute and npu_moe_token_unpermute by expert ids, and their gradients."""

from typing import Any

import torch
from torch import Tensor

from plait import ops
from plait.compat.torch_npu._operator import Operator, as_positions, invalid, require_absent
from plait.ops._permute_ids import num_kept_rows, unpermute_backward

# Above this an id is taken for a mark rather than a number, and ids are numbered anew before they are counted.
_MANY_EXPERTS = 1 << 16


def _topk(indices: Tensor) -> int:
    return indices.shape[1] if indices.dim() == 2 else 1


def _check_permute(tokens: Tensor, indices: Tensor, padded_mode: bool) -> None:
    require_absent("npu_moe_token_permute", padded_mode=padded_mode)
    if tokens.dim() != 2 or indices.dim() not in (1, 2) or indices.shape[0] != tokens.shape[0]:
        shapes = f"tokens {tuple(tokens.shape)}, indices {tuple(indices.shape)}"
        raise invalid("npu_moe_token_permute", f"{shapes}; they are (T,H) and (T,k) or (T)")


def _dense_ids(indices: Tensor) -> Tensor:
    ids = indices.reshape(indices.shape[0], -1)
    if ids.numel() == 0 or (int(ids.min()) >= 0 and int(ids.max()) < _MANY_EXPERTS):
        return ids
    return torch.unique(ids, return_inverse=True)[1]


def _permute(tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None, padded_mode: bool = False) -> tuple[Tensor, Tensor]:
    _check_permute(tokens, indices, padded_mode)
    return ops.permute(tokens, _dense_ids(indices), num_out_rows=num_out_tokens or 0)


def _permute_fake(
    tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None, padded_mode: bool = False
) -> tuple[Tensor, Tensor]:
    _check_permute(tokens, indices, padded_mode)
    num_rows = num_kept_rows(indices.numel(), num_out_tokens or 0)
    return tokens.new_empty(num_rows, tokens.shape[1]), indices.new_empty(indices.numel(), dtype=torch.int32)


def _sum_per_token(rows: Tensor, sorted_indices: Tensor, topk: int) -> Tensor:
    """(T,H): the rows of each token added up, slot by slot in float32."""
    return ops.unpermute(rows, as_positions(sorted_indices), k=topk)


def _permute_grad(
    tokens: Tensor, grad_permuted_tokens: Tensor, indices: Tensor, sorted_indices: Tensor, padded_mode: bool = False
) -> Tensor:
    require_absent("npu_moe_token_permute_grad", padded_mode=padded_mode)
    return _sum_per_token(grad_permuted_tokens, sorted_indices, _topk(indices)).to(tokens.dtype)


def _permute_grad_fake(
    tokens: Tensor, grad_permuted_tokens: Tensor, indices: Tensor, sorted_indices: Tensor, padded_mode: bool = False
) -> Tensor:
    return tokens.new_empty(tokens.shape)


def _permute_grad_v2(
    grad_permuted_tokens: Tensor,
    sorted_indices: Tensor,
    tokens_size_0: int,
    tokens_dtype: torch.dtype,
    num_topK: int,  # noqa: N803 (the schema has this name)
    padded_mode: bool = False,
) -> Tensor:
    require_absent("npu_moe_token_permute_grad_v2", padded_mode=padded_mode)
    if sorted_indices.numel() != tokens_size_0 * num_topK:
        rule = f"sorted_indices has {sorted_indices.numel()} items; they are tokens_size_0={tokens_size_0} times num_topK={num_topK}"
        raise invalid("npu_moe_token_permute_grad_v2", rule)
    return _sum_per_token(grad_permuted_tokens, sorted_indices, num_topK).to(tokens_dtype)


def _permute_grad_v2_fake(
    grad_permuted_tokens: Tensor,
    sorted_indices: Tensor,
    tokens_size_0: int,
    tokens_dtype: torch.dtype,
    num_topK: int,  # noqa: N803
    padded_mode: bool = False,
) -> Tensor:
    return grad_permuted_tokens.new_empty(tokens_size_0, grad_permuted_tokens.shape[1], dtype=tokens_dtype)


def _save_permute(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tokens, indices = inputs[:2]
    ctx.save_for_backward(output[1])
    ctx.num_tokens, ctx.dtype, ctx.topk = tokens.shape[0], tokens.dtype, _topk(indices)
    ctx.mark_non_differentiable(output[1])


def _differentiate_permute(ctx: Any, grad_permuted_tokens: Tensor, _sorted_indices: Any) -> tuple[Any, ...]:
    (sorted_indices,) = ctx.saved_tensors
    gradient = torch.ops.npu.npu_moe_token_permute_grad_v2(grad_permuted_tokens, sorted_indices, ctx.num_tokens, ctx.dtype, ctx.topk)
    return gradient, None, None, None


def _check_unpermute(operator: str, sorted_indices: Tensor, probs: Tensor | None, padded_mode: bool) -> int:
    """k."""
    require_absent(operator, padded_mode=padded_mode)
    if sorted_indices.dim() != 1 or (probs is not None and probs.dim() != 2):
        raise invalid(operator, "sorted_indices is (T*k), probs (T,k)")
    if probs is not None and probs.numel() != sorted_indices.numel():
        raise invalid(operator, f"probs has {probs.numel()} elements, sorted_indices {sorted_indices.numel()}; there is one for each")
    return 1 if probs is None else probs.shape[1]


def _unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> Tensor:
    topk = _check_unpermute("npu_moe_token_unpermute", sorted_indices, probs, padded_mode)
    return ops.unpermute(permuted_tokens, as_positions(sorted_indices), probs, k=topk)


def _unpermute_fake(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> Tensor:
    topk = _check_unpermute("npu_moe_token_unpermute", sorted_indices, probs, padded_mode)
    return permuted_tokens.new_empty(sorted_indices.shape[0] // topk, permuted_tokens.shape[1])


def _unpermute_and_rows(permuted_tokens: Tensor, *arguments: Any, **named: Any) -> tuple[Tensor, Tensor]:
    """With the rows that a gradient needs; a copy, since a result of an operator is no alias of an argument."""
    return _unpermute(permuted_tokens, *arguments, **named), permuted_tokens.clone()


def _unpermute_and_rows_fake(permuted_tokens: Tensor, *arguments: Any, **named: Any) -> tuple[Tensor, Tensor]:
    return _unpermute_fake(permuted_tokens, *arguments, **named), permuted_tokens.new_empty(permuted_tokens.shape)


def _unpermute_gradients(
    operator: str, dy: Tensor, rows: Tensor | None, sorted_indices: Tensor, num_rows: int, dtype: torch.dtype, probs: Tensor | None, padded: bool
) -> tuple[Tensor, Tensor | None]:
    """Of the rows, rounded to their type, and of probs."""
    topk = _check_unpermute(operator, sorted_indices, probs, padded)
    if probs is not None and rows is None:
        raise invalid(operator, "permuted_tokens is missing; with probs it is needed for their gradient")
    weights = None if probs is None else probs.float()
    saved = None if rows is None or probs is None else rows
    drows, dprobs = unpermute_backward(dy, saved, as_positions(sorted_indices), weights, topk, num_rows, True, probs is not None)
    return drows.to(dtype), None if probs is None else dprobs.to(probs.dtype)


def _unpermute_grad(
    permuted_tokens: Tensor,
    grad_unpermuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> tuple[Tensor, Tensor | None]:
    rows, dy = permuted_tokens, grad_unpermuted_tokens
    name = "npu_moe_token_unpermute_grad"
    return _unpermute_gradients(name, dy, rows, sorted_indices, rows.shape[0], rows.dtype, probs, padded_mode)


def _unpermute_grad_fake(
    permuted_tokens: Tensor,
    grad_unpermuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> tuple[Tensor, Tensor | None]:
    return permuted_tokens.new_empty(permuted_tokens.shape), None if probs is None else probs.new_empty(probs.shape)


def _unpermute_grad_v2(
    grad_unpermuted_tokens: Tensor,
    sorted_indices: Tensor,
    permuted_tokens_size_0: int,
    permuted_tokens_dtype: torch.dtype,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
    permuted_tokens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    name, dy = "npu_moe_token_unpermute_grad_v2", grad_unpermuted_tokens
    return _unpermute_gradients(
        name, dy, permuted_tokens, sorted_indices, permuted_tokens_size_0, permuted_tokens_dtype, probs, padded_mode
    )


def _unpermute_grad_v2_fake(
    grad_unpermuted_tokens: Tensor,
    sorted_indices: Tensor,
    permuted_tokens_size_0: int,
    permuted_tokens_dtype: torch.dtype,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
    permuted_tokens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    drows = grad_unpermuted_tokens.new_empty(permuted_tokens_size_0, grad_unpermuted_tokens.shape[1], dtype=permuted_tokens_dtype)
    return drows, None if probs is None else probs.new_empty(probs.shape)


def _save_unpermute(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    rows, sorted_indices, probs = inputs[:3]
    ctx.num_rows, ctx.dtype = rows.shape[0], rows.dtype
    ctx.save_for_backward(None if probs is None else rows, sorted_indices, probs)


def _differentiate_unpermute(ctx: Any, dy: Tensor, *_rows: Any) -> tuple[Any, ...]:
    rows, sorted_indices, probs = ctx.saved_tensors
    drows, dprobs = torch.ops.npu.npu_moe_token_unpermute_grad_v2(
        dy, sorted_indices, ctx.num_rows, ctx.dtype, probs, permuted_tokens=rows
    )
    return drows, None, dprobs, None, None


def _save_unpermute_and_rows(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _save_unpermute(ctx, inputs, output)
    ctx.mark_non_differentiable(output[1])


OPERATORS = {
    "npu_moe_token_permute": Operator(_permute, _permute_fake, _differentiate_permute, _save_permute),
    "npu_moe_token_permute_grad": Operator(_permute_grad, _permute_grad_fake),
    "npu_moe_token_permute_grad_v2": Operator(_permute_grad_v2, _permute_grad_v2_fake),
    "npu_moe_token_unpermute": Operator(_unpermute, _unpermute_fake, _differentiate_unpermute, _save_unpermute),
    "_npu_moe_token_unpermute": Operator(
        _unpermute_and_rows, _unpermute_and_rows_fake, _differentiate_unpermute, _save_unpermute_and_rows
    ),
    "npu_moe_token_unpermute_grad": Operator(_unpermute_grad, _unpermute_grad_fake),
    "npu_moe_token_unpermute_grad_v2": Operator(_unpermute_grad_v2, _unpermute_grad_v2_fake),
}
