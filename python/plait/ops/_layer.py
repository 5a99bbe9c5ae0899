"""moe_layer: the routed experts of an MoE layer under expert parallelism."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from plait import _alone, _core
from plait._group import Group
from plait.ops._common import array, as_ids, cast_like_matmul, collective, optional_array
from plait.ops._layer_call import PARAMETERS, arrays, check_accumulators, in_order, run_backward

_GIVEN = _core.RouterConfig(0, 0, "softmax", False, 1.0, 1, 1)  # routing comes from outside


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
    dgate_up: Tensor | None = None,
    ddown: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    with collective(group) as ranks:
        y = x.new_empty(x.shape)
        kind = _core.Activation(activation, interleaved, limit, alpha)
        config = _core.LayerConfig(_GIVEN, kind, dispatcher, "exact", False, sentinel, recompute)
        weights = _in_order(gate_up, gate_up_bias, down, down_bias)
        state, *_ = _core.layer_forward(ranks, config, array(x), array(expert_ids), optional_array(expert_weights), arrays(weights), y)
    return y, torch.from_dlpack(state)


@layer_forward.register_fake
def _(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(1, dtype=torch.int64)


def _in_order(gate_up: Any, gate_up_bias: Any, down: Any, down_bias: Any) -> list[Any]:
    return in_order({"gate_up": gate_up, "gate_up_bias": gate_up_bias, "down": down, "down_bias": down_bias})


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, _, expert_weights, *parameters, ctx.group = inputs[:8]
    ctx.into = inputs[-2:]
    ctx.save_for_backward(output[1], x, expert_weights, *parameters)


def _differentiate(ctx: Any, dy: Tensor, _state: Any) -> tuple[Any, ...]:
    state, x, expert_weights, *parameters = ctx.saved_tensors
    need_expert_weights, *need = (bool(needed) for needed in ctx.needs_input_grad[2:7])
    dgate_up, ddown = ctx.into
    needed = [need_expert_weights, *map(bool, _in_order(*need))]
    weights, into = _in_order(*parameters), _in_order(dgate_up, None, ddown, None)
    dx, dexpert_weights, *gradients = run_backward(dy, [], state, x, expert_weights, weights, ctx.group, needed, into)
    first = PARAMETERS.index("gate_up")
    return dx, None, dexpert_weights, *gradients[first : first + len(parameters)], *[None] * 10


layer_forward.register_autograd(_differentiate, setup_context=_save)


def moe_layer(
    x: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor | None,
    gate_up: Tensor,
    down: Tensor,
    group: Group | None = None,
    *,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    activation: str = "swiglu",
    interleaved: bool = False,
    limit: float = 7.0,
    alpha: float = 1.702,
    dispatcher: str = "mc2",
    sentinel: bool = False,
    recompute: bool = False,
    accumulate_into: Mapping[str, Tensor] | None = None,
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
        group: from `plait.init` or `plait.run_ranks`; None: this process alone has all experts.
        gate_up_bias, down_bias: (e,2I) and (e,H), or both None.
        activation: "swiglu", "swiglu_clamped" (with limit and alpha), "geglu_tanh" or "relu2".
        interleaved: columns are gate, up, gate, up, ... instead of [gate | up].
        dispatcher: "mc2" (rows are read and written where they lie), "alltoall", "eager", "allgather" or "auto".
        sentinel: ids of E and above contribute nothing, instead of being refused.
        recompute: keep less for backward and compute it again there; same bits.
        accumulate_into: float32 tensors for "gate_up" and "down", in their shapes, to which backward adds the gradients of these weights
            instead of giving them to autograd.

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
    accumulators = check_accumulators("moe_layer", accumulate_into, {"gate_up": gate_up, "down": down})
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
        _alone.HANDLE if group is None else group.handle,
        activation,
        interleaved,
        limit,
        alpha,
        dispatcher,
        sentinel,
        recompute,
        *accumulators,
    )
    return y
