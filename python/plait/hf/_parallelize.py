"""Expert parallelism for models of transformers that were built from a config."""

from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from plait._errors import InvalidArgument
from plait._group import Group
from plait.parallel._collectives import gather, together, values_of_ranks
from plait.parallel._gradients import expert_parameters
from plait.parallel._parallelize import _default_group
from plait.parallel._sharding import expert_modules, prepare

Model = TypeVar("Model", bound=nn.Module)

_BUCKET = 1 << 20  # elements: what a rank gathers of the others is bounded


def parallelize(model: Model, group: Group | ProcessGroup | None = None, *, dispatcher: str = "auto", recompute: bool = False) -> Model:
    """Shards all experts of a model over the ranks of a group; the other parameters stay whole on each rank.

    Every rank calls it with the same weights (the same seed, or the same checkpoint), each then feeds tokens of its own. Optimizers are
    made afterwards. After backward, before the optimizer's step, call `reduce_gradients`.

    Args:
        model: of transformers, as from `AutoModelForCausalLM.from_config`; changed in place.
        group: of Plait, or of torch.distributed; None: all ranks of torch.distributed where that is initialised, otherwise `plait.init()`.
        dispatcher, recompute: as for `plait.ops.moe_layer`.

    Returns:
        The model.

    Raises:
        plait.InvalidArgument: no experts in the model, experts that the ranks do not divide, or an activation that Plait does not have;
            names all modules concerned. Nothing is changed then.

    Example:
        >>> model = AutoModelForCausalLM.from_config(config)  # doctest: +SKIP
        >>> plait.hf.parallelize(model, plait.init(), dispatcher="mc2")  # doctest: +SKIP
    """
    if group is None:
        group = _default_group()
    elif not isinstance(group, Group):
        group = Group.from_process_group(group)
    prepared, faults = [], []
    for name, experts in _experts_of(model):
        try:
            prepared.append(prepare(name, experts, group))
        except InvalidArgument as fault:
            faults.append(str(fault))
    if faults or not prepared:
        raise InvalidArgument("parallelize: " + ("\n  ".join(faults) or f"{type(model).__name__} has no module of experts"))
    for experts in prepared:
        experts.shard(group, {"dispatcher": dispatcher, "sentinel": True, "recompute": recompute})
    return model


def _experts_of(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Those that transformers' use_experts_implementation has decorated."""
    return ((n, m) for n, m in model.named_modules() if hasattr(m, "_is_expert_parallel") and hasattr(m, "has_gate"))


@torch.no_grad()
def reduce_gradients(model: nn.Module) -> None:
    """Makes the gradients those of the mean over ranks of the ranks' losses, as one process would have them on all tokens.

    Experts' gradients, sums over all ranks' tokens, are divided by the number of ranks. All others are added up in the order of ranks, in
    float32, and divided by it, so that all ranks get the same bits. Collective. Not beside DDP, FSDP or `scale_expert_gradients`, which
    do the same.

    Args:
        model: that `plait.hf.parallelize` or `plait.parallelize` has sharded over one group.

    Raises:
        plait.InvalidArgument: no sharded experts, or several groups.
        plait.Error: on all ranks, naming the rank that did not come.

    Example:
        >>> model(input_ids=tokens, labels=tokens).loss.backward()  # doctest: +SKIP
        >>> plait.hf.reduce_gradients(model)  # doctest: +SKIP
        >>> optimizer.step()  # doctest: +SKIP
    """
    groups = {id(shards.group): shards.group for _, _, shards in expert_modules(model)}
    if len(groups) != 1:
        raise InvalidArgument(f"reduce_gradients: the model's experts are sharded over {len(groups)} groups; it works with one")
    (group,) = groups.values()
    experts = expert_parameters(model)
    for expert in experts.values():
        if expert.grad is not None:
            expert.grad.div_(group.size)
    own = {id(expert) for expert in experts.values()}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in own]
    with together([group]):
        for bucket in _buckets(_with_gradient_anywhere(group, others)):
            _average(group, bucket)


def mean_over_ranks(group: Group, value: float) -> float:
    """Of a number of each rank, as its loss; equal on all ranks. Collective.

    Example:
        >>> plait.run_ranks(2, lambda group: plait.hf.mean_over_ranks(group, group.rank))
        [0.5, 0.5]
    """
    return sum(values_of_ranks(group, "mean over ranks", value)) / group.size


def _with_gradient_anywhere(group: Group, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    """A parameter that no token of this rank has reached has a gradient of 0 here; one that none has reached has none."""
    flags = group.core().exchange("gradients that are there", bytes(p.grad is not None for p in parameters))
    return [p for p, *there in zip(parameters, *flags, strict=True) if any(there)]


def _buckets(parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        if bucket and sum(p.numel() for p in bucket) + parameter.numel() > _BUCKET:
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket


def _average(group: Group, parameters: list[nn.Parameter]) -> None:
    own = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten().float() for p in parameters])
    parts = gather(group, "gradients", own)
    assert parts is not None
    total = _sum_in_order(parts.view(group.size, -1)).div_(group.size)
    for parameter, mean in zip(parameters, total.split([p.numel() for p in parameters]), strict=True):
        gradient = mean.view(parameter.shape).to(parameter.dtype)
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad.copy_(gradient)


def _sum_in_order(parts: Tensor) -> Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total
