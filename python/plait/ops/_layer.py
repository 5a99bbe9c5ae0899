"""moe_layer: the routed experts of an MoE layer under expert parallelism."""

from typing import Any

import torch
from torch import Tensor

from plait import _core
from plait._group import Group, group_of
from plait.ops._common import array, as_ids, cast_like_matmul, optional_array, unused


@torch.library.custom_op("plait::moe_layer", mutates_args=(), device_types="cpu")
def layer_forward(
    x: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor | None,
    gate_up: Tensor,
    gate_up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    group: int,
    activation: str,
    interleaved: bool,
    limit: float,
    alpha: float,
    dispatcher: str,
    sentinel: bool,
    recompute: bool,
) -> tuple[Tensor, Tensor]:
    ranks = group_of(group)
    try:
        y = x.new_empty(x.shape)
        state = _core.layer_forward(
            ranks.core(),
            array(x),
            array(expert_ids),
            optional_array(expert_weights),
            array(gate_up),
            optional_array(gate_up_bias),
            array(down),
            optional_array(down_bias),
            _core.Activation(activation, interleaved, limit, alpha),
            dispatcher,
            sentinel,
            recompute,
            y,
        )
    except BaseException as failure:
        ranks.abort(str(failure))
        raise
    return y, torch.from_dlpack(state)


@layer_forward.register_fake
def _(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(1, dtype=torch.int64)


@torch.library.custom_op("plait::moe_layer_backward", mutates_args=(), device_types="cpu")
def layer_backward(
    dy: Tensor,
    state: Tensor,
    x: Tensor,
    expert_weights: Tensor | None,
    gate_up: Tensor,
    gate_up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    group: int,
    need: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    ranks = group_of(group)
    try:
        results = _empty_gradients(x, expert_weights, gate_up, gate_up_bias, down, down_bias, need)
        dx, dweights, dgate_up, dgate_up_bias, ddown, ddown_bias = (r if r.dim() > 1 else None for r in results)
        _core.layer_backward(
            array(state),
            array(x),
            array(gate_up),
            optional_array(gate_up_bias),
            array(down),
            optional_array(down_bias),
            array(dy),
            dx,
            dgate_up,
            dgate_up_bias,
            ddown,
            ddown_bias,
            dweights,
        )
    except BaseException as failure:
        ranks.abort(str(failure))
        raise
    return results


@layer_backward.register_fake
def _(
    dy: Tensor,
    state: Tensor,
    x: Tensor,
    expert_weights: Tensor | None,
    gate_up: Tensor,
    gate_up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    group: int,
    need: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _empty_gradients(x, expert_weights, gate_up, gate_up_bias, down, down_bias, need)


def _empty_gradients(
    x: Tensor,
    expert_weights: Tensor | None,
    gate_up: Tensor,
    gate_up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    need: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Of x, weights, gate_up, its bias, down, its bias. dx is always computed; others that nobody needs are one-dimensional and empty."""
    others = (expert_weights, gate_up, gate_up_bias, down, down_bias)
    gradients = [t.new_empty(t.shape) if wanted and t is not None else unused(x) for t, wanted in zip(others, need, strict=True)]
    return x.new_empty(x.shape), gradients[0], gradients[1], gradients[2], gradients[3], gradients[4]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, _, expert_weights, gate_up, gate_up_bias, down, down_bias, ctx.group = inputs[:8]
    ctx.save_for_backward(output[1], x, expert_weights, gate_up, gate_up_bias, down, down_bias)


def _differentiate(ctx: Any, dy: Tensor, _state: Any) -> tuple[Any, ...]:
    state, *operands = ctx.saved_tensors
    need = [ctx.needs_input_grad[i] for i in (2, 3, 4, 5, 6)]
    dx, *others = layer_backward(dy, state, *operands, ctx.group, need)
    wanted = [gradient if needed else None for gradient, needed in zip(others, need, strict=True)]
    return dx, None, *wanted, *[None] * 8


layer_forward.register_autograd(_differentiate, setup_context=_save)


def moe_layer(
    x: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor | None,
    gate_up: Tensor,
    down: Tensor,
    group: Group,
    *,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    activation: str = "swiglu",
    interleaved: bool = False,
    limit: float = 7.0,
    alpha: float = 1.702,
    dispatcher: str = "alltoall",
    sentinel: bool = False,
    recompute: bool = False,
) -> Tensor:
    """The routed experts of an MoE layer, whose E experts live on the R ranks of a group, e = E / R on each.

    Collective: every rank of the group calls it, forward and backward, with tokens of its own. The bits of the result depend neither on
    the dispatcher nor on R.

    Args:
        x: (T,H) tokens of this rank; T may differ between ranks and may be 0.
        expert_ids: (T,k) int32 or int64 in [0, E), as from `plait.ops.route`.
        expert_weights: (T,k), or None: all 1.
        gate_up: (e,H,2I) weights of this rank's experts, (e,H,I) where the activation has no gate; any strides.
        down: (e,I,H), any strides.
        group: from `plait.init` or `plait.run_ranks`.
        gate_up_bias, down_bias: (e,2I) and (e,H), or both None.
        activation: "swiglu", "swiglu_clamped" (with limit and alpha), "geglu_tanh" or "relu2".
        interleaved: columns are gate, up, gate, up, ... instead of [gate | up].
        dispatcher: "alltoall", "eager", "allgather", "mc2" or "auto".
        sentinel: ids of E and above contribute nothing, instead of being refused.
        recompute: keep less for backward and compute it again there; same bits.

    Returns:
        (T,H), of x's type: the sum over the chosen experts of weight * expert(x). Differentiable in x, expert_weights, weights and biases;
        gradients of weights are sums over the tokens of all ranks. Under torch.autocast x, weights and biases are cast as for
        torch.matmul.

    Raises:
        plait.Error: on all ranks, naming the rank that failed and why. The group is stopped then.

    Example:
        >>> gate_up, down = torch.ones(1, 2, 2), torch.ones(1, 1, 2)
        >>> def rank(group):  # expert 0 lives on rank 0, expert 1 on rank 1
        ...     ids = torch.tensor([[1 - group.rank]])
        ...     return plait.ops.moe_layer(torch.ones(1, 2), ids, None, gate_up, down * (group.rank + 1), group)
        >>> [round(y[0, 0].item(), 4) for y in plait.run_ranks(2, rank)]
        [7.0464, 3.5232]
    """
    if expert_weights is not None:
        expert_weights = expert_weights.float()
    cast_x, cast_gate_up, cast_gate_up_bias, cast_down, cast_down_bias = cast_like_matmul(x, gate_up, gate_up_bias, down, down_bias)
    assert cast_x is not None and cast_gate_up is not None and cast_down is not None
    y, _ = layer_forward(
        cast_x,
        as_ids(expert_ids),
        expert_weights,
        cast_gate_up,
        cast_gate_up_bias,
        cast_down,
        cast_down_bias,
        group.handle,
        activation,
        interleaved,
        limit,
        alpha,
        dispatcher,
        sentinel,
        recompute,
    )
    return y
