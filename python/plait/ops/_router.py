"""route: scores, top-k choice, weights and auxiliary losses."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from plait import _core
from plait.ops._common import array, optional_array, require_dims


@torch.library.custom_op("plait::route", mutates_args=(), device_types="cpu")
def route_forward(
    logits: Tensor, bias: Tensor | None, top_k: int, score: str, norm_topk: bool, scaling: float, n_group: int, topk_group: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    require_dims("route", "logits", logits, "(T,E)")
    config = _core.RouterConfig(logits.shape[1], top_k, score, norm_topk, scaling, n_group, topk_group)
    weights, ids, scores = _empty_results(logits, max(top_k, 0))
    losses = _core.route(config, array(logits), optional_array(bias), ids, weights, scores)
    load_balancing, z = (torch.tensor(loss, dtype=torch.float32) for loss in losses)
    return weights, ids, scores, load_balancing, z


@route_forward.register_fake
def _(
    logits: Tensor, bias: Tensor | None, top_k: int, score: str, norm_topk: bool, scaling: float, n_group: int, topk_group: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return *_empty_results(logits, top_k), logits.new_empty((), dtype=torch.float32), logits.new_empty((), dtype=torch.float32)


def _empty_results(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, ids, scores."""
    num_tokens = logits.shape[0]
    return (
        logits.new_empty(num_tokens, top_k, dtype=torch.float32),
        logits.new_empty(num_tokens, top_k, dtype=torch.int32),
        logits.new_empty(logits.shape, dtype=torch.float32),
    )


@torch.library.custom_op("plait::route_backward", mutates_args=(), device_types="cpu")
def route_backward(
    dweights: Tensor,
    dload_balancing: Tensor,
    dz: Tensor,
    logits: Tensor,
    scores: Tensor,
    ids: Tensor,
    weights: Tensor,
    top_k: int,
    score: str,
    norm_topk: bool,
    scaling: float,
    n_group: int,
    topk_group: int,
) -> Tensor:
    config = _core.RouterConfig(logits.shape[1], top_k, score, norm_topk, scaling, n_group, topk_group)
    dlogits = logits.new_empty(logits.shape)
    losses = dload_balancing.item(), dz.item()
    _core.route_backward(config, array(logits), array(scores), array(ids), array(weights), array(dweights), *losses, dlogits)
    return dlogits


@route_backward.register_fake
def _(dweights: Tensor, dload_balancing: Tensor, dz: Tensor, logits: Tensor, *_: Any) -> Tensor:
    return logits.new_empty(logits.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    weights, ids, scores, _, _ = output
    ctx.save_for_backward(inputs[0], scores, ids, weights)
    ctx.settings = inputs[2:]


def _differentiate(ctx: Any, dweights: Tensor, _ids: Any, _scores: Any, dload_balancing: Tensor, dz: Tensor) -> tuple[Any, ...]:
    logits, scores, ids, weights = ctx.saved_tensors
    dlogits = route_backward(dweights, dload_balancing, dz, logits, scores, ids, weights, *ctx.settings)
    return dlogits, None, None, None, None, None, None, None


route_forward.register_autograd(_differentiate, setup_context=_save)


class Routing(NamedTuple):
    """Where tokens go. `scores` carries no gradient; the losses are plain, before any coefficient, and 0 for 0 tokens."""

    expert_ids: Tensor  #: (T,k) int32, in descending order of the choice value
    weights: Tensor  #: (T,k) float32
    scores: Tensor  #: (T,E) float32
    load_balancing_loss: Tensor  #: float32 scalar: E * sum over experts of (share of entries) * (mean score)
    z_loss: Tensor  #: float32 scalar: mean of logsumexp(logits)^2


def route(
    logits: Tensor,
    top_k: int,
    *,
    score: str = "softmax",
    bias: Tensor | None = None,
    norm_topk: bool = False,
    scaling: float = 1.0,
    n_group: int = 1,
    topk_group: int = 1,
) -> Routing:
    """Chooses k experts for each token, and their weights. Computes in float32 whatever the type of the logits; autocast does not apply.

    Args:
        logits: (T,E).
        top_k: k. Equal values go to the smaller expert id.
        score: "softmax" over all experts, "sigmoid", or "topk_softmax": choice by logit + bias, weights = softmax over the chosen.
        bias: (E) float32, steers the choice only and gets no gradient.
        norm_topk: divide the weights by their sum.
        scaling: then multiply them by this.
        n_group, topk_group: experts in n_group equal groups, of which the best topk_group take part.

    Returns:
        A `Routing`; weights and losses are differentiable in the logits.

    Raises:
        plait.InvalidArgument: k above E or above what the groups leave; logits that are NaN or +inf, naming the token.

    Example:
        >>> routing = plait.ops.route(torch.zeros(1, 8), 2, norm_topk=True)
        >>> routing.expert_ids.tolist(), routing.weights.tolist()
        ([[0, 1]], [[0.5, 0.5]])
    """
    weights, ids, scores, load_balancing, z = route_forward(logits, bias, top_k, score, norm_topk, scaling, n_group, topk_group)
    return Routing(ids, weights, scores.detach(), load_balancing, z)
