"""The optimizer's state of a model with sharded experts: gathered, and taken apart again."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from plait._errors import InvalidArgument
from plait.parallel._collectives import gather, together
from plait.parallel._layout import ExpertShards
from plait.parallel._state_dict import distributed_like, sharded_parameters


def full_optimizer_state_dict(model: nn.Module, optimizer: Optimizer, *, rank0_only: bool = False) -> dict[str, Any]:
    """The optimizer's state as if nothing were sharded, by the names of parameters instead of their numbers.

    State in the shape of its parameter, as the averages of AdamW, is gathered like the parameter by `plait.full_state_dict`: experts packed.
    Collective in the same way; all ranks have taken the same number of steps.

    Args:
        optimizer: of parameters of the model.
        rank0_only: gather on rank 0 of each group alone; other ranks get an empty dict.

    Returns:
        {"state": {name: {...}}, "param_groups": [{"params": [names], ...}]}, as torch.distributed.checkpoint has it.

    Raises:
        plait.InvalidArgument: a parameter that is not the model's.
        plait.Error: on all ranks, naming the rank that failed.

    Example:
        >>> layer = plait.nn.MoE(4, 8, 6, 2, plait.init("optimizer"))
        >>> optimizer = torch.optim.AdamW(layer.parameters())
        >>> layer(torch.ones(3, 8)).sum().backward()
        >>> optimizer.step()
        >>> whole = plait.full_optimizer_state_dict(layer, optimizer)
        >>> whole["state"]["experts.gate_up"]["exp_avg"].shape
        torch.Size([4, 8, 12])
    """
    names, sharded = _names(model, optimizer), sharded_parameters(model)
    parameters = dict(model.named_parameters())
    whole: dict[str, dict[str, Any]] = {}
    with together([shards.group for shards, _ in sharded.values()]), torch.no_grad():
        for name in (name for group in names for name in group):
            shards = sharded[name][0] if name in sharded else None
            state = optimizer.state.get(parameters[name], {})
            whole[name] = {
                key: _gathered(f"{key} of {name}", value, parameters[name], shards, 0 if rank0_only else None) for key, value in state.items()
            }
    if rank0_only and any(shards.group.rank != 0 for shards, _ in sharded.values()):
        return {}
    settings = [
        {key: value for key, value in group.items() if key != "params"} | {"params": own}
        for group, own in zip(optimizer.param_groups, names, strict=True)
    ]
    return {"state": whole, "param_groups": settings}


def load_full_optimizer_state_dict(model: nn.Module, optimizer: Optimizer, whole: Mapping[str, Any]) -> None:
    """Loads what `full_optimizer_state_dict` gave, with any number of ranks: each takes its own part. No ranks talk to each other.

    Raises:
        plait.InvalidArgument: other parameters than the optimizer's, naming them.

    Example:
        >>> layer = plait.nn.MoE(4, 8, 6, 2, plait.init("optimizer"))
        >>> optimizer = torch.optim.AdamW(layer.parameters())
        >>> plait.load_full_optimizer_state_dict(layer, optimizer, plait.full_optimizer_state_dict(layer, optimizer))
    """
    names, sharded = _names(model, optimizer), sharded_parameters(model)
    parameters = dict(model.named_parameters())
    theirs = [list(group["params"]) for group in whole["param_groups"]]
    if theirs != names:
        raise InvalidArgument(f"load_full_optimizer_state_dict: the optimizer has parameters {names}, the state is of {theirs}")
    numbers = {name: number for number, name in enumerate(name for group in names for name in group)}
    state = {
        numbers[name]: {
            key: _own(value, parameters[name], sharded[name][0] if name in sharded else None) for key, value in whole["state"][name].items()
        }
        for name in numbers
        if whole["state"].get(name)
    }
    groups = [group | {"params": [numbers[name] for name in group["params"]]} for group in whole["param_groups"]]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _names(model: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    """Of each group of parameters, their names in the model."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise InvalidArgument(f"the optimizer has a parameter of shape {tuple(parameter.shape)} that is not the model's")
    return [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]


def _gathered(stage: str, value: Any, parameter: Tensor, shards: ExpertShards | None, root: int | None) -> Any:
    if isinstance(value, DTensor):
        return value.full_tensor()
    if shards is not None and isinstance(value, Tensor) and value.shape == parameter.shape:
        return gather(shards.group, stage, value, root)
    return value.clone() if isinstance(value, Tensor) else value


def _own(value: Any, parameter: Tensor, shards: ExpertShards | None) -> Any:
    """Copies: the optimizer keeps what it is given, and the whole would stay with it."""
    if not isinstance(value, Tensor):
        return value
    if isinstance(parameter, DTensor) and value.shape == parameter.shape:
        return distributed_like(parameter, value)
    if shards is not None and value.shape == (shards.num_experts, *parameter.shape[1:]):
        return value[shards.own].clone()
    return value.clone()
