"""parallelize: shards the experts of a loaded model as a configuration says."""

import logging
import os
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from torch import nn

from plait._errors import InvalidArgument
from plait._group import Group, init
from plait.parallel._plan import EpPlan, read_plan
from plait.parallel._sharding import prepare

_log = logging.getLogger("plait")


def parallelize(
    model: nn.Module, config: EpPlan | Mapping[str, Any] | str | os.PathLike[str], group: Group | None = None, **options: Any
) -> nn.Module:
    """Shards the experts of a loaded model over the ranks of a group and computes them with Plait.

    Every rank calls it with the same model, whole. Parameters of experts are replaced by this rank's part: make optimizers, DDP and FSDP
    afterwards. The other parameters stay as they are. `plait.shard_experts` says which modules can be sharded.

    Args:
        model: changed in place.
        config: path of a YAML file with the section parallel.ep_plan, the dict of such a file, its section ep_plan alone, or a
            `plait.EpPlan`. Patterns are names of modules, with {*} for one part of a name.
        group: None: the ranks of torch.distributed where that is initialised, otherwise `plait.init()`.
        options: sentinel and recompute, as for `plait.ops.moe_layer`.

    Returns:
        The model. The names of its sharded modules are those of `plait.expert_parameters(model)`; their number is logged.

    Raises:
        plait.InvalidArgument: all faults of the configuration at once; a pattern that matches nothing, with the nearest names, or that
            matches what is no module of experts; another number of ranks. Nothing is changed then.

    Example:
        >>> model = torch.nn.ModuleDict({"mlp": some_experts})  # doctest: +SKIP
        >>> plait.parallelize(model, {"apply_modules": ["mlp"], "dispatcher": "mc2"}, group)  # doctest: +SKIP
    """
    plan = read_plan(config)
    unknown = options.keys() - {"sentinel", "recompute"}
    if unknown:
        raise TypeError(f"parallelize: unknown options {', '.join(sorted(unknown))}; there are sentinel and recompute")
    group = _default_group() if group is None else group
    if plan.expert_parallel_size not in (None, group.size):
        raise InvalidArgument(f"parallelize: expert_parallel_size is {plan.expert_parallel_size}, but the group has {group.size} ranks")
    modules = dict(model.named_modules())
    faults: list[str] = []
    prepared = []
    for name in _matches(plan, modules, faults):
        try:
            prepared.append((name, prepare(name, modules[name], group)))
        except InvalidArgument as fault:
            faults.append(str(fault))
    if faults:
        raise InvalidArgument("parallelize: " + "\n  ".join([f"{len(faults)} faults:", *faults] if len(faults) > 1 else faults))
    all_options = {"dispatcher": plan.dispatcher, "sentinel": False, "recompute": False} | options
    for name, experts in prepared:
        _put(model, name, experts.shard(group, all_options))
    _log.info("plait: %d modules of experts sharded over %d ranks, dispatcher %s", len(prepared), group.size, plan.dispatcher)
    return model


def _default_group() -> Group:
    from plait import _process_group

    return Group.from_process_group() if _process_group.is_initialized() else init()


def _matches(plan: EpPlan, modules: Mapping[str, nn.Module], faults: list[str]) -> Iterator[str]:
    """Names of modules that a pattern matches, each once; patterns that match nothing are faults."""
    seen = set()
    for pattern in plan.apply_modules:
        expression = re.compile(r"[^.]+".join(map(re.escape, pattern.split("{*}"))))
        names = [name for name in modules if expression.fullmatch(name)]
        if not names:
            # Of the names of layers that differ in a number only, one will do.
            general = {re.sub(r"(?<=\.)\d+(?=\.|$)", "{*}", name): None for name in modules if name}
            near = get_close_matches(pattern, general, 3, 0.5)
            faults.append(f'"{pattern}" matches no module; nearest: {", ".join(near) or "none"}')
        yield from (name for name in names if name not in seen)
        seen.update(names)


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    if name:
        setattr(model.get_submodule(parent), child, module)
