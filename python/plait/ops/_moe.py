"""moe: a whole MoE layer, router and shared expert included, in one operator."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plait import _alone, _core
from plait._errors import InvalidArgument
from plait._group import Group
from plait.ops._common import array, cast_like_matmul, collective
from plait.ops._layer_call import PARAMETERS, arrays, check_accumulators, in_order, run_backward

_ACCUMULATED = ("gate_up", "down", "shared_gate_up", "shared_down")


@torch.library.custom_op("plait::moe", mutates_args=(), device_types="cpu")
def forward(
    x: Tensor,
    router_weight: Tensor,
    router_bias: Tensor | None,
    choice_bias: Tensor | None,
    gate_up: Tensor,
    gate_up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    shared_gate_up: Tensor | None,
    shared_down: Tensor | None,
    shared_gate: Tensor | None,
    group: int,
    top_k: int,
    score: str,
    norm_topk: bool,
    scaling: float,
    n_group: int,
    topk_group: int,
    router_f32: bool,
    activation: str,
    interleaved: bool,
    limit: float,
    alpha: float,
    dispatcher: str,
    combine: str,
    recompute: bool,
    dgate_up: Tensor | None = None,
    ddown: Tensor | None = None,
    dshared_gate_up: Tensor | None = None,
    dshared_down: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    with collective(group) as ranks:
        y = x.new_empty(x.shape)
        router = _core.RouterConfig(router_weight.shape[0], top_k, score, norm_topk, scaling, n_group, topk_group)
        kind = _core.Activation(activation, interleaved, limit, alpha)
        config = _core.LayerConfig(router, kind, dispatcher, combine, router_f32, False, recompute)
        experts = (gate_up, gate_up_bias, down, down_bias, shared_gate_up, shared_down, shared_gate)
        weights = arrays((router_weight, router_bias, choice_bias, *experts))
        state, ids, *losses = _core.layer_forward(ranks, config, array(x), None, None, weights, y)
    load_balancing, z = (torch.tensor(loss, dtype=torch.float32) for loss in losses)
    return y, load_balancing, z, torch.from_dlpack(ids).clone(), torch.from_dlpack(state)


@forward.register_fake
def _(x: Tensor, *settings: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    top_k = settings[11]
    loss = x.new_empty((), dtype=torch.float32)
    ids = x.new_empty(x.shape[0], top_k, dtype=torch.int32)
    return x.new_empty(x.shape), loss, torch.empty_like(loss), ids, x.new_empty(1, dtype=torch.int64)


_FIRST_SETTING = 1 + len(PARAMETERS)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.group, ctx.num_others = inputs[_FIRST_SETTING], len(inputs) - _FIRST_SETTING
    ctx.into = in_order(dict(zip(_ACCUMULATED, inputs[-len(_ACCUMULATED) :], strict=True)))
    ctx.save_for_backward(output[-1], *inputs[:_FIRST_SETTING])


def _differentiate(ctx: Any, dy: Tensor, dload_balancing: Tensor, dz: Tensor, _ids: Any, _state: Any) -> tuple[Any, ...]:
    state, x, *weights = ctx.saved_tensors
    wanted = (needed and name != "choice_bias" for name, needed in zip(PARAMETERS, ctx.needs_input_grad[1:_FIRST_SETTING], strict=True))
    dx, _, *gradients = run_backward(dy, [dload_balancing, dz], state, x, None, weights, ctx.group, [False, *wanted], ctx.into)
    return dx, *gradients, *[None] * ctx.num_others


forward.register_autograd(_differentiate, setup_context=_save)


class MoeOutput(NamedTuple):
    """What a layer gives. The losses are plain, before any coefficient, over this rank's tokens, and 0 for 0 tokens."""

    y: Tensor  #: (T,H), of x's type
    load_balancing_loss: Tensor  #: float32 scalar: E * sum over experts of (share of entries) * (mean score)
    z_loss: Tensor  #: float32 scalar: mean of logsumexp(logits)^2
    expert_ids: Tensor  #: (T,k) int32: where the tokens went


def moe(
    x: Tensor,
    router_weight: Tensor,
    gate_up: Tensor,
    down: Tensor,
    group: Group | None = None,
    *,
    top_k: int,
    router_bias: Tensor | None = None,
    choice_bias: Tensor | None = None,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    shared_gate_up: Tensor | None = None,
    shared_down: Tensor | None = None,
    shared_gate: Tensor | None = None,
    score: str = "softmax",
    norm_topk: bool = False,
    scaling: float = 1.0,
    n_group: int = 1,
    topk_group: int = 1,
    router_dtype: torch.dtype | None = None,
    activation: str = "swiglu",
    interleaved: bool = False,
    limit: float = 7.0,
    alpha: float = 1.702,
    dispatcher: str = "mc2",
    combine: str = "exact",
    recompute: bool = False,
    accumulate_into: Mapping[str, Tensor] | None = None,
) -> MoeOutput:
    """A whole MoE layer: router, routed experts on the R ranks of a group, and, where the model has one, a shared expert.

    Collective: every rank of the group calls it, forward and backward, with tokens of its own. The bits of y depend neither on the
    dispatcher nor on R. Router and shared expert are the same on all ranks; their gradients are of this rank's tokens, so that they are
    reduced over the ranks like those of any replicated parameter.

    Args:
        x: (T,H) tokens of this rank; T may differ between ranks and may be 0.
        router_weight: (E,H), of x's type.
        gate_up, down, gate_up_bias, down_bias: of this rank's experts, as for `moe_layer`.
        group: from `plait.init` or `plait.run_ranks`; None: this process alone has all experts.
        top_k: k. score, norm_topk, scaling, n_group, topk_group: as for `route`.
        router_bias: (E), added to the logits. choice_bias: (E), steers the choice only and gets no gradient.
        shared_gate_up: (H,2Is) and shared_down: (Is,H): the shared expert, an MLP over all tokens with the same activation.
        shared_gate: (H): scales the shared expert's rows by sigmoid(x @ shared_gate).
        router_dtype: torch.float32 computes logits in float32; None: in x's type, and under autocast in float32.
        activation, interleaved, limit, alpha, dispatcher, recompute: as for `moe_layer`.
        combine: "exact", or "reduced" for fewer bytes and other rounding with dispatcher "allgather".
        accumulate_into: float32 tensors for any of "gate_up", "down", "shared_gate_up", "shared_down", in their shapes, to which backward
            adds these weights' gradients instead of giving them to autograd.

    Returns:
        A `MoeOutput`. y and the losses are differentiable in x, in all weights and in all biases but choice_bias. Under torch.autocast x
        and weights are cast as for torch.matmul.

    Raises:
        plait.Error: on all ranks, naming the rank that failed and why. The group is stopped then.

    Example:
        >>> x, router = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0], [1.0, 0.0]])
        >>> gate_up, down = torch.ones(2, 2, 1), torch.tensor([[[1.0, 1.0]], [[5.0, 7.0]]])
        >>> out = plait.ops.moe(x, router, gate_up, down, top_k=1, norm_topk=True, activation="relu2")
        >>> out.expert_ids.tolist(), out.y.tolist()
        ([[1]], [[5.0, 7.0]])
    """
    named = {"gate_up": gate_up, "down": down, "shared_gate_up": shared_gate_up, "shared_down": shared_down}
    accumulators = check_accumulators("moe", accumulate_into, named)
    if router_dtype not in (None, torch.float32, x.dtype):
        raise InvalidArgument(f"moe: router_dtype is {router_dtype}; it is torch.float32, or None for x's type, {x.dtype}")
    router_f32 = router_dtype == torch.float32 or torch.is_autocast_enabled("cpu")
    cast_x, router, *experts = cast_like_matmul(
        x, router_weight, gate_up, gate_up_bias, down, down_bias, shared_gate_up, shared_down, shared_gate
    )
    biases = (None if bias is None else bias.float() for bias in (router_bias, choice_bias))
    y, load_balancing, z, ids, _ = forward(  # type: ignore[call-arg]
        cast_x,  # type: ignore[arg-type]
        router,  # type: ignore[arg-type]
        *biases,
        *experts,  # type: ignore[arg-type]
        _alone.HANDLE if group is None else group.handle,
        top_k,
        score,
        norm_topk,
        scaling,
        n_group,
        topk_group,
        router_f32,
        activation,
        interleaved,
        limit,
        alpha,
        dispatcher,
        combine,
        recompute,
        *accumulators,
    )
    return MoeOutput(y, load_balancing, z, ids)
