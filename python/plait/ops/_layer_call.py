"""The backward of the layer's operators: parameters and gradients as lists in the core's order."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from plait import _core
from plait._errors import InvalidArgument
from plait.ops._common import array, collective, empty_gradient, optional_array, unused

#: The core's order of the lists of weights and gradients. `choice_bias` has no gradient.
PARAMETERS = (
    "router_weight",
    "router_bias",
    "choice_bias",
    "gate_up",
    "gate_up_bias",
    "down",
    "down_bias",
    "shared_gate_up",
    "shared_down",
    "shared_gate",
)


def in_order(given: Mapping[str, Any]) -> list[Any]:
    """What is given by name, in the core's order; None for the rest."""
    return [given.get(name) for name in PARAMETERS]


def arrays(weights: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [optional_array(weight) for weight in weights]


def _empty_results(x: Tensor, expert_weights: Tensor | None, weights: Sequence[Tensor | None], need: Sequence[bool]) -> list[Tensor]:
    """For dx, the gradient of expert_weights, and those of all weights; what nobody needs is one-dimensional and empty."""
    operands = zip((expert_weights, *weights), need, strict=True)
    return [x.new_empty(x.shape), *(empty_gradient(t) if wanted and t is not None else unused(x) for t, wanted in operands)]


def _run_backward(
    dy: Tensor,
    losses: list[Tensor],
    state: Tensor,
    x: Tensor,
    expert_weights: Tensor | None,
    weights: Sequence[Tensor | None],
    group: int,
    need: Sequence[bool],
    into: Mapping[int, Tensor],
) -> list[Tensor]:
    with collective(group):
        results = _empty_results(x, expert_weights, weights, need)
        wanted = [result if needed and t is not None else None for result, needed, t in zip(results[2:], need[1:], weights, strict=True)]
        if into:  # the core adds to all gradients or to none
            wanted = [None if result is None else torch.zeros_like(result, dtype=torch.float32) for result in wanted]
        elif wanted[0] is not None:  # the router's, which the core may have in float32 alone, as its logits
            wanted[0] = torch.empty_like(wanted[0], dtype=torch.float32)
        targets = [array(into[place]) if place in into else target for place, target in enumerate(wanted)]
        dweights = results[1] if need[0] and expert_weights is not None else None
        coefficients = [loss.item() for loss in losses] or [0.0, 0.0]
        operands = array(state), array(x), arrays(weights), array(dy)
        _core.layer_backward(*operands, results[0], targets, dweights, bool(into), *coefficients)
        for result, target in zip(results[2:], wanted, strict=True):
            if target is not None and target is not result:
                result.copy_(target)
    return results


@torch.library.custom_op("plait::moe_layer_backward", mutates_args=(), device_types="cpu")
def layer_backward(
    dy: Tensor,
    losses: list[Tensor],
    state: Tensor,
    x: Tensor,
    expert_weights: Tensor | None,
    weights: list[Tensor | None],
    group: int,
    need: list[bool],
) -> list[Tensor]:
    return _run_backward(dy, losses, state, x, expert_weights, weights, group, need, {})


@torch.library.custom_op("plait::moe_layer_backward_into", mutates_args={"into"}, device_types="cpu")
def layer_backward_into(
    dy: Tensor,
    losses: list[Tensor],
    state: Tensor,
    x: Tensor,
    expert_weights: Tensor | None,
    weights: list[Tensor | None],
    group: int,
    need: list[bool],
    into: list[Tensor],
    places: list[int],
) -> list[Tensor]:
    return _run_backward(dy, losses, state, x, expert_weights, weights, group, need, dict(zip(places, into, strict=True)))


def _fake(
    dy: Tensor,
    losses: list[Tensor],
    state: Tensor,
    x: Tensor,
    expert_weights: Tensor | None,
    weights: list[Tensor | None],
    group: int,
    need: list[bool],
    *_: Any,
) -> list[Tensor]:
    return _empty_results(x, expert_weights, weights, need)


layer_backward.register_fake(_fake)
layer_backward_into.register_fake(_fake)


def run_backward(
    dy: Tensor,
    losses: list[Tensor],
    state: Tensor,
    x: Tensor,
    expert_weights: Tensor | None,
    weights: list[Tensor | None],
    group: int,
    need: Sequence[bool],
    into: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """dx, the gradient of expert_weights and those of all weights; None where `need` says so and where it is added to one of `into`.

    Args:
        losses: the gradients of the load-balancing and of the z-loss, or none where routing was given.
        need: for expert_weights, then for all weights.
        into: float32 accumulators of weights.
    """
    places = [place for place, buffer in enumerate(into) if buffer is not None]
    needed = [need[0], *(wanted and place not in places for place, wanted in enumerate(need[1:]))]
    operands = (dy, losses, state, x, expert_weights, weights, group, needed)
    results = layer_backward_into(*operands, [into[place] for place in places], places) if places else layer_backward(*operands)
    return [results[0], *(result if wanted else None for result, wanted in zip(results[1:], needed, strict=True))]


def check_accumulators(
    operation: str, accumulate_into: Mapping[str, Tensor] | None, weights: Mapping[str, Tensor | None]
) -> list[Tensor | None]:
    """The accumulators in the order of `weights`. Shapes and types are checked by the core."""
    given = dict(accumulate_into or {})
    if given and torch.compiler.is_compiling():  # backward would change what is no part of its graph
        raise InvalidArgument(f"{operation}: accumulate_into cannot be compiled; leave the layer out of torch.compile, or let autograd add up")
    for name in given:
        if weights.get(name) is None:
            there = ", ".join(key for key, weight in weights.items() if weight is not None)
            raise InvalidArgument(f"{operation}: accumulate_into names '{name}'; it may name {there}")
    return [given.get(name) for name in weights]
