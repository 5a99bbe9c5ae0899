"""Whole weights of a model with sharded experts: gathered, and taken apart again."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DeviceMesh, DTensor, Shard, distribute_tensor

from plait._errors import InvalidArgument
from plait.parallel._collectives import gather, together
from plait.parallel._layout import ExpertShards
from plait.parallel._sharding import expert_modules
from plait.parallel._sources import MappingSource, SafetensorsSource, Source, own_part


def full_state_dict(model: nn.Module, *, rank0_only: bool = False, per_expert: bool = False) -> dict[str, Tensor]:
    """The state dict of the model as if nothing were sharded: all E experts, and the whole of parameters that FSDP2 has sharded.

    Collective over the groups of the experts, and over FSDP's ranks. `model.state_dict()` is not: it has this rank's experts.

    Args:
        rank0_only: gather on rank 0 of each group alone; other ranks get an empty dict.
        per_expert: experts one by one under the names of checkpoints, as experts.3.gate_proj.weight, instead of packed. Those of a model
            that had lists of experts are always so.

    Returns:
        Names, in the order of model.state_dict(), and tensors that are not the model's own.

    Raises:
        plait.Error: on all ranks, naming the rank that failed.

    Example:
        >>> layer = plait.nn.MoE(4, 8, 6, 2, plait.init("saving"))
        >>> whole = plait.full_state_dict(layer)
        >>> whole["experts.gate_up"].shape, "experts.3.down_proj.weight" in plait.full_state_dict(layer, per_expert=True)
        (torch.Size([4, 8, 12]), True)
    """
    sharded = sharded_parameters(model)
    whole: dict[str, Tensor] = {}
    with together([shards.group for shards, _ in sharded.values()]), torch.no_grad():
        for key, own in model.state_dict().items():
            if key in sharded:
                shards, parameter = sharded[key]
                experts = gather(shards.group, f"full_state_dict of {key}", own, 0 if rank0_only else None)
                if experts is not None:
                    whole |= _named(key, parameter, experts, shards, per_expert)
            elif isinstance(own, DTensor):
                whole[key] = own.full_tensor()
            else:
                whole[key] = own.detach().clone() if isinstance(own, Tensor) else own
    keep = not rank0_only or all(shards.group.rank == 0 for shards, _ in sharded.values())
    return whole if keep else {}


def sharded_parameters(model: nn.Module) -> dict[str, tuple[ExpertShards, str]]:
    """Of each name in the state dict that holds a rank's experts: the shards, and its name in its module."""
    return {
        f"{name}.{parameter}" if name else parameter: (shards, parameter)
        for name, _, shards in expert_modules(model)
        for parameter in shards.layout.parameters()
    }


def _named(key: str, parameter: str, experts: Tensor, shards: ExpertShards, per_expert: bool) -> dict[str, Tensor]:
    if not per_expert and not shards.listed:
        return {key: experts}
    prefix, names = key.removesuffix(parameter), shards.layout.sources(parameter)
    return {
        f"{prefix}{expert}.{name}": part
        for expert, whole in enumerate(experts)
        for name, part in zip(names, shards.layout.unpack(whole, len(names)), strict=True)
    }


def load_full_state_dict(
    model: nn.Module, source: Mapping[str, Tensor] | str | os.PathLike[str], *, strict: bool = True, assign: bool = False
) -> tuple[list[str], list[str]]:
    """Loads whole weights: each rank takes its own experts. No ranks talk to each other.

    `model.load_state_dict` takes whole weights as well, where no parameter is FSDP's.

    Args:
        source: whole weights by name, or a safetensors file, its index, or a folder of them, of which this rank reads its own part only.
            Experts may be packed, under the model's own names, or one by one, as experts.3.gate_proj.weight (also w1, w3, w2).
        strict: every parameter must be there and nothing else.
        assign: the tensors become the model's instead of being copied into it, as for models on the meta device.

    Returns:
        Missing and unexpected names; both empty where `strict`.

    Raises:
        plait.InvalidArgument: with `strict`, names that are missing or unexpected; some experts without others.
        ImportError: a path without the package safetensors.
        RuntimeError: shapes differ; names the parameters.

    Example:
        >>> layer = plait.nn.MoE(4, 8, 6, 2, plait.init("loading"))
        >>> plait.load_full_state_dict(layer, plait.full_state_dict(layer, per_expert=True))
        ([], [])
    """
    whole: Source = MappingSource(source) if isinstance(source, Mapping) else SafetensorsSource(Path(source))
    own, used = _own_state(model, whole)
    missing = [key for key in model.state_dict() if key not in own]
    unexpected = [key for key in whole if key not in used]
    if strict and (missing or unexpected):
        raise InvalidArgument(f"load_full_state_dict: {_listed('missing', missing)}{_listed('unexpected', unexpected)}")
    model.load_state_dict(own, strict=False, assign=assign)
    return missing, unexpected


def _own_state(model: nn.Module, source: Source) -> tuple[dict[str, Any], set[str]]:
    """What this rank loads, and the names in the source that it was made of."""
    sharded = sharded_parameters(model)
    own: dict[str, Any] = {}
    used: set[str] = set()
    for key, current in model.state_dict().items():
        if key in sharded:
            shards, parameter = sharded[key]
            part = own_part(source, key.removesuffix(parameter), parameter, shards)
            if part is None and key in source:
                raise InvalidArgument(
                    f"load_full_state_dict: {key} has {source.num_rows(key)} experts; whole weights have all {shards.num_experts}. What one "
                    "rank saved by model.state_dict() is loaded by model.load_state_dict() on that rank"
                )
            if part is not None:
                own[key] = part.value
                used.update(part.keys)
        elif key in source:
            value = source.read(key)
            own[key] = distributed_like(current, value) if isinstance(current, DTensor) else value
            used.add(key)
    return own, used


def distributed_like(current: DTensor, whole: Tensor) -> DTensor:
    """All ranks have read the whole: none has to send."""
    return distribute_tensor(whole.to(current.dtype), current.device_mesh, current.placements, src_data_rank=None)


def _listed(kind: str, names: list[str]) -> str:
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"{kind}: {shown}. " if names else ""


def sharded_state_dict(model: nn.Module) -> dict[str, Any]:
    """The state dict with this rank's experts as DTensors, Shard(0) over the ranks of their group: what torch.distributed.checkpoint saves
    and loads, also with another number of ranks. The tensors are the model's own.

    Raises:
        plait.InvalidArgument: the experts' group was not made by `Group.from_process_group`.

    Example:
        >>> torch.distributed.checkpoint.save(plait.sharded_state_dict(model), checkpoint_id=folder)  # doctest: +SKIP
    """
    sharded = sharded_parameters(model)
    meshes: dict[int, DeviceMesh] = {}
    state = dict(model.state_dict())
    for key in state.keys() & sharded.keys():
        group = sharded[key][0].group
        if group.process_group is None:
            raise InvalidArgument(f"sharded_state_dict: {key} is sharded over {group}, which is not from Group.from_process_group")
        if group.handle not in meshes:
            meshes[group.handle] = DeviceMesh.from_group(group.process_group, "cpu")
        state[key] = DTensor.from_local(state[key], meshes[group.handle], [Shard(0)], run_check=False)
    return state
