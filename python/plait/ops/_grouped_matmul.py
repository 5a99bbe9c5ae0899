"""grouped_matmul: one matrix product per group of rows."""

from collections.abc import Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor

from plait import _core
from plait._errors import InvalidArgument
from plait.ops._common import array, cast_like_matmul, empty_gradient, is_transposed, optional_array, require_dims, unused
from plait.ops._grouped_matmul_lists import multiply_lists

GroupList = Tensor | Sequence[int] | Sequence[Sequence[int]]


@torch.library.custom_op("plait::grouped_matmul", mutates_args=(), device_types="cpu")
def m_grouped(x: Tensor, weight: Tensor, group_list: Tensor, group_list_type: int, bias: Tensor | None, fused: bool) -> Tensor:
    require_dims("grouped_matmul", "x", x, "(M,K)")
    require_dims("grouped_matmul", "weight", weight, "(G,K,N)")
    y = x.new_empty(x.shape[0], weight.shape[2])
    _core.grouped_matmul(array(x), array(weight), array(group_list), group_list_type, optional_array(bias), y, fused)
    return y


@m_grouped.register_fake
def _(x: Tensor, weight: Tensor, group_list: Tensor, group_list_type: int, bias: Tensor | None, fused: bool) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[2])


@torch.library.custom_op("plait::grouped_matmul_backward", mutates_args=(), device_types="cpu")
def m_grouped_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    group_list: Tensor,
    group_list_type: int,
    bias: Tensor | None,
    fused: bool,
    need_dx: bool,
    need_dw: bool,
    need_dbias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dx = x.new_empty(x.shape) if need_dx else None
    dw = empty_gradient(weight) if need_dw else None
    dbias = bias.new_empty(bias.shape) if need_dbias and bias is not None else None
    dy, x, weight, group_list = array(dy), array(x), array(weight), array(group_list)
    separate = dw is not None and is_transposed(dw)
    _core.grouped_matmul_backward(dy, x, weight, group_list, group_list_type, dx, None if separate else dw, dbias, fused)
    if dw is not None and separate:  # dW^T = dy^T x: the same chains, stored the other way round
        _core.grouped_matmul_k(dy, x, group_list, group_list_type, dw.transpose(1, 2), False, fused)
    return tuple(unused(x) if gradient is None else gradient for gradient in (dx, dw, dbias))  # type: ignore[return-value]


@m_grouped_backward.register_fake
def _(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    group_list: Tensor,
    group_list_type: int,
    bias: Tensor | None,
    fused: bool,
    need_dx: bool,
    need_dw: bool,
    need_dbias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape) if need_dx else unused(x),
        empty_gradient(weight) if need_dw else unused(x),
        bias.new_empty(bias.shape) if need_dbias and bias is not None else unused(x),
    )


def _save_m_grouped(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, group_list, ctx.group_list_type, bias, ctx.fused = inputs
    ctx.save_for_backward(x, weight, group_list, bias)


def _differentiate_m_grouped(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, weight, group_list, bias = ctx.saved_tensors
    need = ctx.needs_input_grad
    need_dx, need_dw, need_dbias = need[0], need[1], need[4]
    dx, dw, dbias = m_grouped_backward(dy, x, weight, group_list, ctx.group_list_type, bias, ctx.fused, need_dx, need_dw, need_dbias)
    return dx if need_dx else None, dw if need_dw else None, None, None, dbias if need_dbias else None, None


m_grouped.register_autograd(_differentiate_m_grouped, setup_context=_save_m_grouped)


@torch.library.custom_op("plait::grouped_matmul_k", mutates_args=(), device_types="cpu")
def k_grouped(x: Tensor, dy: Tensor, group_list: Tensor, group_list_type: int, fused: bool) -> Tensor:
    require_dims("grouped_matmul", "x", x, "(M,K)")
    require_dims("grouped_matmul", "weight", dy, "(M,N)")
    dw = x.new_empty(group_list.shape[0], x.shape[1], dy.shape[1])
    _core.grouped_matmul_k(array(x), array(dy), array(group_list), group_list_type, dw, False, fused)
    return dw


@k_grouped.register_fake
def _(x: Tensor, dy: Tensor, group_list: Tensor, group_list_type: int, fused: bool) -> Tensor:
    return x.new_empty(group_list.shape[0], x.shape[1], dy.shape[1])


def _save_k_grouped(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, dy, group_list, ctx.group_list_type, ctx.fused = inputs
    ctx.save_for_backward(x, dy, group_list)


def _differentiate_k_grouped(ctx: Any, ddw: Tensor) -> tuple[Any, ...]:
    x, dy, group_list = ctx.saved_tensors
    need = ctx.needs_input_grad
    dx = m_grouped(dy, ddw.transpose(1, 2), group_list, ctx.group_list_type, None, ctx.fused) if need[0] else None
    ddy = m_grouped(x, ddw, group_list, ctx.group_list_type, None, ctx.fused) if need[1] else None
    return dx, ddy, None, None, None


k_grouped.register_autograd(_differentiate_k_grouped, setup_context=_save_k_grouped)


@torch.library.custom_op("plait::grouped_matmul_out", mutates_args={"out"}, device_types="cpu")
def m_grouped_out(
    x: Tensor, weight: Tensor, group_list: Tensor, group_list_type: int, bias: Tensor | None, fused: bool, out: Tensor
) -> None:
    _core.grouped_matmul(array(x), array(weight), array(group_list), group_list_type, optional_array(bias), array(out), fused)


@torch.library.custom_op("plait::grouped_matmul_k_out", mutates_args={"out"}, device_types="cpu")
def k_grouped_out(x: Tensor, dy: Tensor, group_list: Tensor, group_list_type: int, fused: bool, accumulate: bool, out: Tensor) -> None:
    _core.grouped_matmul_k(array(x), array(dy), array(group_list), group_list_type, array(out), accumulate, fused)


@m_grouped_out.register_fake
def _(x: Tensor, weight: Tensor, group_list: Tensor, group_list_type: int, bias: Tensor | None, fused: bool, out: Tensor) -> None:
    return None


@k_grouped_out.register_fake
def _(x: Tensor, dy: Tensor, group_list: Tensor, group_list_type: int, fused: bool, accumulate: bool, out: Tensor) -> None:
    return None


def _refuse(rule: str) -> InvalidArgument:
    return InvalidArgument(f"grouped_matmul: {rule}")


def _check_no_graph(name: str, *tensors: Tensor | None) -> None:
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        raise _refuse(f"{name}= takes no part in autograd; call it under torch.no_grad() or with detached tensors")


def _as_tensor(group_list: GroupList | None) -> Tensor:
    if group_list is None:
        raise _refuse("group_list is missing; only group_type=-1 has none")
    return group_list if isinstance(group_list, Tensor) else torch.tensor(group_list, dtype=torch.int64)


def _group_rows(group_list: Tensor, group_list_type: int, num_groups: int) -> list[int]:
    """Rows per group of a list that the core has accepted."""
    if group_list_type == 0:
        return torch.diff(group_list, prepend=group_list.new_zeros(1)).tolist()
    if group_list_type == 1:
        return group_list.tolist()
    pairs = group_list.reshape(-1, 2)
    return pairs.new_zeros(num_groups).index_copy_(0, pairs[:, 0].long(), pairs[:, 1]).tolist()


def _run_m_grouped(x: Tensor, weight: Tensor, rows: Tensor, list_type: int, bias: Tensor | None, out: Tensor | None, fused: bool) -> Tensor:
    x_cast, weight_cast, bias_cast = cast_like_matmul(x, weight, bias)
    assert x_cast is not None and weight_cast is not None
    if out is None:
        return m_grouped(x_cast, weight_cast, rows, list_type, bias_cast, fused)
    _check_no_graph("out", x, weight, bias, out)
    m_grouped_out(x_cast, weight_cast, rows, list_type, bias_cast, fused, out)
    return out


def _run_k_grouped(x: Tensor, dy: Tensor, rows: Tensor, list_type: int, into: Tensor | None, out: Tensor | None, fused: bool) -> Tensor:
    require_dims("grouped_matmul", "x", x, "(K,M)")
    x_cast, dy_cast = cast_like_matmul(x.t(), dy)
    assert x_cast is not None and dy_cast is not None
    if into is not None and out is not None:
        raise _refuse("accumulate_into= and out= exclude each other")
    target = out if into is None else into
    if target is not None:
        _check_no_graph("out" if into is None else "accumulate_into", x, dy, target)
        k_grouped_out(x_cast, dy_cast, rows, list_type, fused, into is not None, target)
        return target
    if list_type == 2:
        raise _refuse("pairs do not tell the number of groups; with group_type=2 give accumulate_into= or out= of shape (G,K,N)")
    return k_grouped(x_cast, dy_cast, rows, list_type, fused)


@overload
def grouped_matmul(
    x: Tensor,
    weight: Tensor,
    group_list: GroupList,
    *,
    group_list_type: int = 1,
    group_type: int = 0,
    split_item: Literal[2, 3] = 2,
    bias: Tensor | None = None,
    accumulate_into: Tensor | None = None,
    out: Tensor | None = None,
    fused: bool = True,
) -> Tensor: ...
@overload
def grouped_matmul(
    x: Tensor | Sequence[Tensor],
    weight: Tensor | Sequence[Tensor],
    group_list: GroupList | None = None,
    *,
    group_list_type: int = 1,
    group_type: int = 0,
    split_item: int = 2,
    bias: Tensor | Sequence[Tensor] | None = None,
    accumulate_into: Tensor | None = None,
    out: Tensor | None = None,
    fused: bool = True,
) -> Tensor | list[Tensor]: ...
def grouped_matmul(
    x: Tensor | Sequence[Tensor],
    weight: Tensor | Sequence[Tensor],
    group_list: GroupList | None = None,
    *,
    group_list_type: int = 1,
    group_type: int = 0,
    split_item: int = 2,
    bias: Tensor | Sequence[Tensor] | None = None,
    accumulate_into: Tensor | None = None,
    out: Tensor | None = None,
    fused: bool = True,
) -> Tensor | list[Tensor]:
    """Multiplies each group of rows by a matrix of its own.

    Args:
        x: group_type 0: (M,K), rows of group 0 first. group_type 2: (K,M), as the transposed view of (M,K). group_type -1: a list of (M_i,K_i).
        weight: group_type 0: (G,K,N), any strides: a weight stored (G,N,K) is given as `weight.transpose(1, 2)` and not copied.
            group_type 2: the gradient of the product, (M,N). group_type -1: a list of (K_i,N_i).
        group_list: rows per group, int32 or int64 tensor or list; None for group_type -1.
        group_list_type: 0: ends, 1: counts, 2: pairs (group, count) with ascending groups. Never guessed from the values.
        group_type: 0: groups of rows of x. 2: groups of the summed rows, the weight's gradient (G,K,N). -1: pairs of lists.
        split_item: 0 or 1: a list of results, one per group or pair. 2 or 3: one result.
        bias: (G,N), or a list of (N_i) for group_type -1.
        accumulate_into: group_type 2: float32 (G,K,N) that is added to and returned; blocks of empty groups stay untouched.
        out: written and returned instead of a new tensor (group_type 0 and 2).
        fused: False runs a loop over the groups, with the same bits.

    Returns:
        (M,N), rows beyond the list 0; or (G,K,N), blocks of empty groups 0; or a list of the parts.

    Differentiable in x, weight and bias, except with out= and accumulate_into=. Under torch.autocast operands are cast as for torch.matmul.

    Raises:
        plait.InvalidArgument: types or inner sizes that differ; a list with a negative count, a decreasing end, another length or more
            rows than M, naming item and both values. Nothing has been written then.

    Example:
        >>> x, weight = torch.ones(4, 1), torch.tensor([[[10.0]], [[20.0]]])
        >>> plait.ops.grouped_matmul(x, weight, [2, 1]).flatten().tolist()
        [10.0, 10.0, 20.0, 0.0]
    """
    if group_list_type not in (0, 1, 2) or group_type not in (-1, 0, 2) or split_item not in (0, 1, 2, 3):
        given = f"group_list_type={group_list_type}, group_type={group_type}, split_item={split_item}"
        raise _refuse(f"{given}; group_list_type is 0, 1 or 2, group_type -1, 0 or 2, split_item 0 to 3")
    if group_type == -1:
        if group_list is not None or accumulate_into is not None or out is not None:
            raise _refuse("group_type=-1 takes no group_list, accumulate_into or out")
        parts = multiply_lists(x, weight, bias)
        return parts if split_item < 2 else torch.cat(parts)
    if not isinstance(x, Tensor) or not isinstance(weight, Tensor) or not (bias is None or isinstance(bias, Tensor)):
        raise _refuse(f"group_type={group_type} takes tensors; lists belong to group_type=-1")
    rows = _as_tensor(group_list)
    if group_type == 2:
        if bias is not None:
            raise _refuse("group_type=2 takes no bias")
        dw = _run_k_grouped(x, weight, rows, group_list_type, accumulate_into, out, fused)
        return dw if split_item >= 2 else list(dw.unbind(0))
    if accumulate_into is not None:
        raise _refuse("accumulate_into belongs to group_type=2")
    y = _run_m_grouped(x, weight, rows, group_list_type, bias, out, fused)
    if split_item >= 2:
        return y
    counts = _group_rows(rows, group_list_type, weight.shape[0])
    return list(y[: sum(counts)].split(counts))
