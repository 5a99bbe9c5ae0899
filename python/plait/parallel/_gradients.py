"""Gradients of a model whose experts are sharded and whose other parameters are DDP's or FSDP's."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from plait._group import Group
from plait.parallel._collectives import together, values_of_ranks
from plait.parallel._sharding import expert_group_of, expert_modules


def expert_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """This rank's experts: all parameters of the model that are sharded over an expert-parallel group, by name.

    FSDP2 leaves them alone as ignored_params.

    Example:
        >>> layer = plait.nn.MoE(4, 8, 6, 2, plait.init("parameters"))
        >>> sorted(plait.expert_parameters(layer))
        ['experts.down', 'experts.gate_up']
    """
    return {
        f"{name}.{parameter}" if name else parameter: module.get_parameter(parameter)
        for name, module, shards in expert_modules(model)
        for parameter in shards.layout.parameters()
    }


def exclude_experts_from_ddp(model: nn.Module) -> None:
    """Keeps DistributedDataParallel(model), made afterwards, from averaging different experts of different ranks.

    Example:
        >>> layer = plait.nn.MoE(4, 8, 6, 2, plait.init("ddp"))
        >>> plait.exclude_experts_from_ddp(layer)
    """
    ignored = set(getattr(model, "_ddp_params_and_buffers_to_ignore", ())) | expert_parameters(model).keys()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, sorted(ignored))


class ScaledGradients:
    """What `scale_expert_gradients` has installed."""

    def __init__(self, handles: list[RemovableHandle]):
        self._handles = handles

    def remove(self) -> None:
        """Gradients are sums again from now on."""
        for handle in self._handles:
            handle.remove()


def scale_expert_gradients(model: nn.Module, size: int | None = None) -> ScaledGradients:
    """Divides the gradients of experts by the number of ranks over which DDP or FSDP takes the mean of the others.

    An expert's gradient is the sum over the tokens of all ranks, each under the loss of its own rank. Where the loss that counts is the
    mean over ranks, as DDP and FSDP mean it, it has to be divided by their number. Each backward's gradient is divided before it is added
    to grad, so that several backwards may come before a step. Copies of the model start without.

    Args:
        size: number of ranks; None: that of the experts' group. Where data-parallel ranks hold several copies of the experts (their
            number is a multiple of the group's), give it here, and add grad up over the copies before the step.

    Example:
        >>> layer = plait.nn.MoE(4, 8, 6, 2, plait.init("scale"))
        >>> handle = plait.scale_expert_gradients(layer)
        >>> handle.remove()
    """
    handles = []
    for _, module, shards in expert_modules(model):
        divisor = shards.group.size if size is None else size
        for name in shards.layout.parameters():
            parameter = module.get_parameter(name)
            if parameter.requires_grad:
                handles.append(parameter.register_hook(lambda gradient, divisor=divisor: gradient / divisor))
    return ScaledGradients(handles)


class _Parameters(NamedTuple):
    experts: dict[Group, list[Tensor]]
    others: list[Tensor]


def clip_grad_norm_(
    model: nn.Module | Iterable[Tensor], max_norm: float, norm_type: float = 2.0, *, error_if_nonfinite: bool = False
) -> Tensor:
    """torch.nn.utils.clip_grad_norm_ where experts are sharded: the norm is that of the whole model, equal on all ranks.

    Powers of expert gradients are summed over the ranks of their group, those of other parameters are counted once: they are equal on all
    ranks, or DTensors of FSDP2. Collective.

    Args:
        model: or its parameters. Those of a copied model are given as the model.
        max_norm: gradients are scaled in place so that the norm is at most this.
        norm_type: p of the norm, or inf.
        error_if_nonfinite: an error instead of gradients that are all NaN or 0.

    Returns:
        The norm before clipping, a float32 scalar.

    Raises:
        plait.Error: on all ranks, naming the rank that did not come.
        RuntimeError: the norm is not finite, on all ranks alike.

    Example:
        >>> layer = plait.nn.MoE(4, 8, 6, 2, plait.init("clip"))
        >>> layer(torch.ones(3, 8)).sum().backward()
        >>> norm = plait.clip_grad_norm_(layer, 1.0)
        >>> bool(plait.clip_grad_norm_(layer, 1.0) <= 1.0001)
        True
    """
    parameters = _with_gradients(model)
    norms = [_norm_of_experts(group, experts, norm_type) for group, experts in parameters.experts.items()]
    # DTensors and plain tensors do not mix in one call of torch's.
    distributed = [p for p in parameters.others if isinstance(p.grad, DTensor)]
    plain = [p for p in parameters.others if not isinstance(p.grad, DTensor)]
    norms += [_norm_of_others(others, norm_type) for others in (plain, distributed) if others]
    total = torch.linalg.vector_norm(torch.tensor(norms, dtype=torch.float64), norm_type).float() if norms else torch.tensor(0.0)
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(f"clip_grad_norm_: the norm of order {norm_type} of the gradients is {total.item()}; it cannot be clipped")
    for some in (*parameters.experts.values(), plain, distributed):
        torch.nn.utils.clip_grads_with_norm_(some, max_norm, total)
    return total


def _with_gradients(model: nn.Module | Iterable[Tensor]) -> _Parameters:
    """Those that have gradients. Groups are in the order of their parameters, without gradients too: all ranks agree on them."""
    if isinstance(model, nn.Module):
        groups = {id(module.get_parameter(name)): s.group for _, module, s in expert_modules(model) for name in s.layout.parameters()}
        everything: list[Tensor] = list(model.parameters())
    else:
        everything = [model] if isinstance(model, Tensor) else list(model)
        groups = {id(p): group for p in everything if (group := expert_group_of(p)) is not None}
    sorted_out = _Parameters({group: [] for group in groups.values()}, [])
    for parameter in everything:
        if parameter.grad is not None:
            group = groups.get(id(parameter))
            (sorted_out.others if group is None else sorted_out.experts[group]).append(parameter)
    return sorted_out


def _norm_of_experts(group: Group, experts: list[Tensor], p: float) -> float:
    own = [torch.linalg.vector_norm(expert.grad, p, dtype=torch.float32).item() for expert in experts if expert.grad is not None]
    norm = float(torch.linalg.vector_norm(torch.tensor(own, dtype=torch.float64), p)) if own else 0.0
    with together([group]):
        norms = values_of_ranks(group, "clip_grad_norm_", norm)
    return float(torch.linalg.vector_norm(torch.tensor(norms, dtype=torch.float64), p))


def _norm_of_others(others: list[Tensor], p: float) -> float:
    norm = torch.nn.utils.get_total_norm([other.grad for other in others if other.grad is not None], p)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
