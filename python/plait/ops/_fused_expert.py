"""mc2_fused_expert: the routed experts in one call, with separate gate and up weights and any leading dimensions."""

from typing import Any

import torch
from torch import Tensor

from plait import _alone, _core
from plait._group import Group
from plait.ops._common import array, as_ids, cast_like_matmul, collective, empty_gradient, optional_array, unused


@torch.library.custom_op("plait::mc2_fused_expert", mutates_args=(), device_types="cpu")
def forward(
    x: Tensor,
    weights_up: Tensor,
    weights_gate: Tensor | None,
    weights_down: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor | None,
    group: int,
    num_experts: int,
    activation: str,
    limit: float,
    alpha: float,
    dispatcher: str,
    sentinel: bool,
    recompute: bool,
) -> tuple[Tensor, Tensor]:
    with collective(group) as ranks:
        y, state = _core.mc2_fused_expert(
            ranks,
            array(x),
            array(weights_up),
            optional_array(weights_gate),
            array(weights_down),
            array(expert_ids),
            optional_array(expert_weights),
            num_experts,
            _core.Activation(activation, False, limit, alpha),
            dispatcher,
            sentinel,
            recompute,
        )
    return torch.from_dlpack(y), torch.from_dlpack(state)


@forward.register_fake
def _(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(1, dtype=torch.int64)


def _empty_gradients(
    like: Tensor, weights: tuple[Tensor | None, ...], expert_weights: Tensor | None, num_experts: int, need: list[bool]
) -> list[Tensor]:
    """Of up, gate and down, which the core writes gate and up together, and of expert_weights. Experts of other ranks have zeros."""
    needed = [need[0] or need[1], need[0] or need[1], need[2]]
    parts = [
        empty_gradient(weight) if wanted and weight is not None else unused(like) for weight, wanted in zip(weights, needed, strict=True)
    ]
    dexpert_weights = unused(like)
    if need[3] and expert_weights is not None:
        dexpert_weights = expert_weights.new_empty(expert_weights.shape)
    return [*(part.zero_() if num_experts > 0 else part for part in parts), dexpert_weights]


@torch.library.custom_op("plait::mc2_fused_expert_backward", mutates_args=(), device_types="cpu")
def backward(
    dy: Tensor,
    state: Tensor,
    x: Tensor,
    weights_up: Tensor,
    weights_gate: Tensor | None,
    weights_down: Tensor,
    expert_weights: Tensor | None,
    group: int,
    num_experts: int,
    need: list[bool],
) -> list[Tensor]:
    with collective(group):
        weights = (weights_up, weights_gate, weights_down)
        results = _empty_gradients(x, weights, expert_weights, num_experts, need)
        up, gate, down, of_weights = (result if result.dim() > 1 else None for result in results)
        dweights = None if of_weights is None else of_weights.view(-1, of_weights.shape[-1])
        operands = array(weights_up), optional_array(weights_gate), array(weights_down), array(dy)
        dx = _core.mc2_fused_expert_backward(array(state), array(x), *operands, up, gate, down, dweights)
    return [torch.from_dlpack(dx), *results]


@backward.register_fake
def _(
    dy: Tensor,
    state: Tensor,
    x: Tensor,
    weights_up: Tensor,
    weights_gate: Tensor | None,
    weights_down: Tensor,
    expert_weights: Tensor | None,
    group: int,
    num_experts: int,
    need: list[bool],
) -> list[Tensor]:
    return [x.new_empty(x.shape), *_empty_gradients(x, (weights_up, weights_gate, weights_down), expert_weights, num_experts, need)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weights_up, weights_gate, weights_down, _, expert_weights, ctx.group, ctx.num_experts = inputs[:8]
    ctx.save_for_backward(output[1], x, weights_up, weights_gate, weights_down, expert_weights)


def _differentiate(ctx: Any, dy: Tensor, _state: Any) -> tuple[Any, ...]:
    need = [ctx.needs_input_grad[i] for i in (1, 2, 3, 5)]
    dx, *others = backward(dy, *ctx.saved_tensors, ctx.group, ctx.num_experts, need)
    up, gate, down, expert_weights = (gradient if needed else None for gradient, needed in zip(others, need, strict=True))
    return dx, up, gate, down, None, expert_weights, *[None] * 8


forward.register_autograd(_differentiate, setup_context=_save)


def mc2_fused_expert(
    x: Tensor,
    weights_up: Tensor,
    weights_gate: Tensor | None,
    weights_down: Tensor,
    expert_ids: Tensor,
    group: Group | None = None,
    expert_weights: Tensor | None = None,
    *,
    num_experts: int | None = None,
    activation: str = "swiglu",
    limit: float = 7.0,
    alpha: float = 1.702,
    dispatcher: str = "mc2",
    sentinel: bool = False,
    recompute: bool = False,
) -> Tensor:
    """`moe_layer` for separate gate and up weights and x of any leading dimensions; the same bits. Collective.

    Args:
        x: (..., H) tokens of this rank, two to four dimensions.
        weights_up: (e,H,I) of this rank's experts, or (E,H,I) of all with `num_experts`; any strides.
        weights_gate: of the shape of weights_up; None where the activation has no gate. Gate and up are joined by one copy per call,
            unless they are the halves [gate | up] of one matrix.
        weights_down: (e or E,I,H).
        expert_ids: (..., k) int32 or int64.
        group: from `plait.init` or `plait.run_ranks`; None: this process alone has all experts.
        expert_weights: (..., k), or None: all 1.
        num_experts: E, where every rank has the weights of all experts and uses its own; their gradients are zeros elsewhere.
        activation, limit, alpha, dispatcher, sentinel, recompute: as for `moe_layer`.

    Returns:
        (..., H), of x's type. Differentiable in x, the weights and expert_weights. Autocast as for `moe_layer`.

    Raises:
        plait.Error: on all ranks, naming the rank that failed and why. The group is stopped then.

    Example:
        >>> up, down, ids = torch.tensor([[[1.0]], [[3.0]]]), torch.tensor([[[1.0]], [[10.0]]]), torch.tensor([[[0], [1]]])
        >>> plait.ops.mc2_fused_expert(torch.tensor([[[2.0], [4.0]]]), up, None, down, ids, activation="relu2").flatten().tolist()
        [4.0, 1440.0]
    """
    if expert_weights is not None:
        expert_weights = expert_weights.float()
    cast_x, cast_up, cast_gate, cast_down = cast_like_matmul(x, weights_up, weights_gate, weights_down)
    assert cast_x is not None and cast_up is not None and cast_down is not None
    y, _ = forward(
        cast_x,
        cast_up,
        cast_gate,
        cast_down,
        as_ids(expert_ids),
        expert_weights,
        _alone.HANDLE if group is None else group.handle,
        num_experts or 0,
        activation,
        limit,
        alpha,
        dispatcher,
        sentinel,
        recompute,
    )
    return y
