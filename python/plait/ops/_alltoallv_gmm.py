"""The fused pair: rows to their experts' ranks and times the experts' weights, and products home."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from plait import _core
from plait._group import Group
from plait.ops._common import array, cast_like_matmul, collective, empty_gradient, optional_array, unused

Counts = Tensor | Sequence[int]


def _as_result(core_array: Any, like: Tensor) -> Tensor:
    return unused(like) if core_array is None else torch.from_dlpack(core_array)


def _define(name: str, home: bool) -> Any:
    """The operator plait::NAME and its backward. `home`: rows travel after the product, so that the weight's gradient needs x itself."""

    @torch.library.custom_op(f"plait::{name}_backward", mutates_args=(), device_types="cpu")
    def backward(
        dy: Tensor,
        dshared_y: Tensor | None,
        rows: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        send_counts: Tensor,
        recv_counts: Tensor,
        shared_x: Tensor | None,
        shared_weight: Tensor | None,
        group: int,
        trans_weight: bool,
        trans_shared_weight: bool,
        fused: bool,
        num_rows: int,
        need: list[bool],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        with collective(group) as ranks:
            dweight, dbias, dshared_weight = (
                empty_gradient(operand) if operand is not None and needed else None
                for operand, needed in zip((weight, bias, shared_weight), need, strict=True)
            )
            dx, dshared_x = _core.alltoallv_gmm_backward(
                ranks,
                home,
                array(dy),
                optional_array(dshared_y),
                optional_array(rows) if need[0] else None,
                array(weight),
                array(send_counts),
                array(recv_counts),
                optional_array(shared_x),
                optional_array(shared_weight),
                trans_weight,
                trans_shared_weight,
                fused,
                dweight,
                dbias,
                dshared_weight,
            )
        parameters = [unused(dy) if gradient is None else gradient for gradient in (dweight, dbias, dshared_weight)]
        return _as_result(dx, dy), parameters[0], parameters[1], _as_result(dshared_x, dy), parameters[2]

    @backward.register_fake
    def _(
        dy: Tensor,
        dshared_y: Tensor | None,
        rows: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        send_counts: Tensor,
        recv_counts: Tensor,
        shared_x: Tensor | None,
        shared_weight: Tensor | None,
        group: int,
        trans_weight: bool,
        trans_shared_weight: bool,
        fused: bool,
        num_rows: int,
        need: list[bool],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        dweight, dbias, dshared_weight = (
            empty_gradient(operand) if operand is not None and needed else unused(dy)
            for operand, needed in zip((weight, bias, shared_weight), need, strict=True)
        )
        dx = dy.new_empty(num_rows, weight.shape[2 if trans_weight else 1])
        dshared_x = unused(dy)
        if dshared_y is not None and shared_weight is not None:
            dshared_x = dy.new_empty(dshared_y.shape[0], shared_weight.shape[1 if trans_shared_weight else 0])
        return dx, dweight, dbias, dshared_x, dshared_weight

    @torch.library.custom_op(f"plait::{name}", mutates_args=(), device_types="cpu")
    def forward(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        shared_x: Tensor | None,
        shared_weight: Tensor | None,
        send_counts: Tensor,
        recv_counts: Tensor,
        num_results: int,
        group: int,
        trans_weight: bool,
        trans_shared_weight: bool,
        return_permuted: bool,
        fused: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        with collective(group) as ranks:
            results = _core.alltoallv_gmm(
                ranks,
                home,
                array(x),
                array(weight),
                array(send_counts),
                array(recv_counts),
                optional_array(bias),
                optional_array(shared_x),
                optional_array(shared_weight),
                trans_weight,
                trans_shared_weight,
                return_permuted,
                fused,
            )
        y, shared_y, permuted = (_as_result(result, x) for result in results)
        return y, shared_y, permuted

    @forward.register_fake
    def _(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        shared_x: Tensor | None,
        shared_weight: Tensor | None,
        send_counts: Tensor,
        recv_counts: Tensor,
        num_results: int,
        group: int,
        trans_weight: bool,
        trans_shared_weight: bool,
        return_permuted: bool,
        fused: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        num_rows = num_results if num_results >= 0 else torch.library.get_ctx().new_dynamic_size()
        shared_y = unused(x)
        if shared_x is not None and shared_weight is not None:
            shared_y = x.new_empty(shared_x.shape[0], shared_weight.shape[0 if trans_shared_weight else 1])
        permuted = x.new_empty(num_rows, x.shape[1]) if return_permuted else unused(x)
        return x.new_empty(num_rows, weight.shape[1 if trans_weight else 2]), shared_y, permuted

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, weight, bias, shared_x, shared_weight, send_counts, recv_counts, _, *settings, return_permuted, ctx.fused = inputs
        ctx.settings, ctx.num_rows = settings, x.shape[0]
        rows = x if home else output[2] if return_permuted else None
        ctx.save_for_backward(rows, weight, bias, send_counts, recv_counts, shared_x, shared_weight)

    def differentiate(ctx: Any, dy: Tensor, dshared_y: Tensor, _permuted: Any) -> tuple[Any, ...]:
        need_x, need_weight, need_bias, need_shared_x, need_shared_weight = ctx.needs_input_grad[:5]
        need = [need_weight, need_bias, need_shared_weight]
        shared = dshared_y if need_shared_x or need_shared_weight else None
        dx, dweight, dbias, dshared_x, dshared_weight = backward(
            dy, shared, *ctx.saved_tensors, *ctx.settings, ctx.fused, ctx.num_rows, need
        )
        gradients = zip((dx, dweight, dbias, dshared_x, dshared_weight), ctx.needs_input_grad[:5], strict=True)
        return *(gradient if needed else None for gradient, needed in gradients), *[None] * 8

    forward.register_autograd(differentiate, setup_context=save)
    return forward


_dispatch = _define("alltoallv_grouped_matmul", home=False)
_combine = _define("grouped_matmul_alltoallv", home=True)


def _as_counts(counts: Counts) -> Tensor:
    return counts if isinstance(counts, Tensor) else torch.tensor(counts, dtype=torch.int64)


def _run(
    operator: Any,
    operands: tuple[Tensor | None, ...],
    group: Group,
    send_counts: Counts,
    recv_counts: Counts,
    *settings: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    # What a tensor counts is not known while a graph is made of this call.
    num_results = -1 if isinstance(recv_counts, Tensor) else sum(recv_counts)
    counts = _as_counts(send_counts), _as_counts(recv_counts)
    y, shared_y, permuted = operator(*cast_like_matmul(*operands), *counts, num_results, group.handle, *settings)
    return y, None if operands[3] is None else shared_y, permuted


def alltoallv_grouped_matmul(
    x: Tensor,
    weight: Tensor,
    group: Group,
    send_counts: Counts,
    recv_counts: Counts,
    *,
    bias: Tensor | None = None,
    shared_x: Tensor | None = None,
    shared_weight: Tensor | None = None,
    trans_weight: bool = False,
    trans_shared_weight: bool = False,
    return_permuted: bool = False,
    fused: bool = True,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Sends rows to the ranks of their experts and multiplies them there by the experts' weights, without waiting for the exchange to end.

    Collective: every rank of the group calls it, forward and backward. e experts per rank, E = R * e.

    Args:
        x: (B,K) rows of this rank, by destination rank, then by its expert: what `permute` gives.
        weight: (e,K,N) of this rank's experts, any strides.
        group: from `plait.init` or `plait.run_ranks`.
        send_counts: R*e numbers, int32 or int64 tensor or list; item d*e + j: rows of x for expert j of rank d. Their sum is B.
        recv_counts: R*e numbers; item s*e + j: rows of rank s for expert j of this rank. Their sum is A.
        bias: (e,N), of x's type or float32.
        shared_x, shared_weight: (S,Ks) and (Ks,Ns): a product without communication, computed where a thread would wait for rows.
        trans_weight: the weight is given as (e,N,K).
        trans_shared_weight: the shared weight is given as (Ns,Ks).
        return_permuted: the arrived rows too. Where the weight is differentiated they are kept anyway.
        fused: False: exchange, then matmul, with the same bits.

    Returns:
        y: (A,N), by expert, then by source rank, then in the sender's order.
        shared_y: (S,Ns), or None without a shared product.
        permuted: (A,K), rows in the order of y, without gradient; None where not asked for.

    y and shared_y are differentiable in x, weight, bias, shared_x and shared_weight. Under torch.autocast operands are cast as for
    torch.matmul.

    Raises:
        plait.Error: on all ranks, naming the rank that failed: counts that disagree between two ranks (with the expert and both numbers),
            another operator, type or size on one rank. The group is stopped then.

    Example:
        >>> def rank(group):  # expert r on rank r multiplies by 10 or 100; rank 0 has rows 3, 4 for expert 1, rank 1 has row 5 for expert 0
        ...     x = torch.tensor([[[3.0], [4.0]], [[5.0]]][group.rank])
        ...     send, recv = ([0, 2], [0, 1]) if group.rank == 0 else ([1, 0], [2, 0])
        ...     weight = torch.full((1, 1, 1), 10.0 if group.rank == 0 else 100.0)
        ...     return plait.ops.alltoallv_grouped_matmul(x, weight, group, send, recv)[0]
        >>> [y.flatten().tolist() for y in plait.run_ranks(2, rank)]
        [[50.0], [300.0, 400.0]]
    """
    keep = return_permuted or (torch.is_grad_enabled() and weight.requires_grad)
    operands = (x, weight, bias, shared_x, shared_weight)
    y, shared_y, permuted = _run(_dispatch, operands, group, send_counts, recv_counts, trans_weight, trans_shared_weight, keep, fused)
    return y, shared_y, permuted.detach() if return_permuted else None


def grouped_matmul_alltoallv(
    x: Tensor,
    weight: Tensor,
    group: Group,
    send_counts: Counts,
    recv_counts: Counts,
    *,
    bias: Tensor | None = None,
    shared_x: Tensor | None = None,
    shared_weight: Tensor | None = None,
    trans_weight: bool = False,
    trans_shared_weight: bool = False,
    fused: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Multiplies rows by the weights of this rank's experts and writes each product to the rank that it belongs to.

    The way back of `alltoallv_grouped_matmul`, with its arguments: what one takes out of order, the other puts back. Collective.

    Args:
        x: (A,K) rows by this rank's expert, then by the rank that they go to.
        weight: (e,K,N) of this rank's experts, any strides.
        send_counts: R*e numbers; item d*e + j: rows of expert j that go to rank d. Their sum is A.
        recv_counts: R*e numbers; item s*e + j: rows that come from expert j of rank s. Their sum is B.
        fused: False: matmul, then exchange, with the same bits.

    Returns:
        y: (B,N), by the rank that the rows come from, then by its expert.
        shared_y: (S,Ns), or None without a shared product.

    Gradients, autocast and errors as there.

    Example:
        >>> def rank(group):  # rank 0 has one row of rank 1, which has two of rank 0
        ...     x = torch.tensor([[[50.0]], [[300.0], [400.0]]][group.rank])
        ...     send, recv = ([0, 1], [0, 2]) if group.rank == 0 else ([2, 0], [1, 0])
        ...     weight = torch.full((1, 1, 1), 2.0)
        ...     return plait.ops.grouped_matmul_alltoallv(x, weight, group, send, recv)[0]
        >>> [y.flatten().tolist() for y in plait.run_ranks(2, rank)]
        [[600.0, 800.0], [100.0]]
    """
    operands = (x, weight, bias, shared_x, shared_weight)
    y, shared_y, _ = _run(_combine, operands, group, send_counts, recv_counts, trans_weight, trans_shared_weight, False, fused)
    return y, shared_y
