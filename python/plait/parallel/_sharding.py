"""Experts of a loaded model, sharded over the ranks of a group: each rank keeps its e = E / R of them and computes with Plait."""

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from plait import ops
from plait._errors import InvalidArgument
from plait._group import Group
from plait.parallel._activation import Activation, activation_of
from plait.parallel._layout import PROJECTION_NAMES, ExpertLayout, ExpertShards, layout_of
from plait.parallel._sources import MappingSource, own_part

_ATTRIBUTE = "plait_shards"
_GROUP_ATTRIBUTE = "plait_group"  # of parameters, for those who are given parameters alone; copies lose it


def check_divisible(name: str, num_experts: int, group: Group) -> None:
    if num_experts < 1 or num_experts % group.size != 0:
        raise InvalidArgument(f"{name}: num_experts={num_experts} is no multiple of the group's {group.size} ranks")


def mark_sharded(module: nn.Module, shards: ExpertShards) -> None:
    """Makes the module known as one of sharded experts: its parameters of the layout hold this rank's experts."""
    setattr(module, _ATTRIBUTE, shards)
    _mark_parameters(module)
    module.register_load_state_dict_pre_hook(_take_own_part)
    module.register_load_state_dict_post_hook(_mark_parameters)


def _mark_parameters(module: nn.Module, *_: object) -> None:
    shards = shards_of(module)
    assert shards is not None
    for name in shards.layout.parameters():
        setattr(module.get_parameter(name), _GROUP_ATTRIBUTE, shards.group)


def _take_own_part(module: nn.Module, state_dict: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Whole weights in a state dict, packed or expert by expert, become this rank's part before the module loads it."""
    shards = shards_of(module)
    assert shards is not None
    source = MappingSource(state_dict)
    for parameter in shards.layout.parameters():
        found = own_part(source, prefix, parameter, shards)
        if found is not None:
            for key in found.keys:
                state_dict.pop(key, None)
            state_dict[prefix + parameter] = found.value


def shards_of(module: nn.Module) -> ExpertShards | None:
    return getattr(module, _ATTRIBUTE, None)


def expert_group_of(parameter: Tensor) -> Group | None:
    """The group over which the experts in a parameter are sharded; None for other parameters."""
    return getattr(parameter, _GROUP_ATTRIBUTE, None)


def expert_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module, ExpertShards]]:
    """Name, module and shards of every module of sharded experts in the model."""
    for name, module in model.named_modules():
        shards = shards_of(module)
        if shards is not None:
            yield name, module, shards


def slice_experts(name: str, module: nn.Module, group: Group, layout: ExpertLayout) -> None:
    """Keeps this rank's experts of a module with packed weights. Parameters are replaced, so optimizers are made afterwards."""
    num_experts = getattr(module, layout.gate_up).shape[0]
    check_divisible(name, num_experts, group)
    shards = ExpertShards(group, num_experts, layout)
    for parameter_name in layout.parameters():
        whole = getattr(module, parameter_name)
        own = whole.detach()[shards.own].clone()
        setattr(module, parameter_name, nn.Parameter(own, requires_grad=whole.requires_grad))
    mark_sharded(module, shards)


def packed_experts_forward(
    module: Any,
    x: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor | None,
    group: Group | None,
    layout: ExpertLayout,
    activation: Activation,
    **options: Any,
) -> Tensor:
    """`plait.ops.moe_layer` over the packed weights of a module, as they are stored: nothing is copied.

    x (..., H), expert_ids and expert_weights (..., k) -> (..., H). `options` are dispatcher, sentinel and recompute.
    """
    gate_up, down = getattr(module, layout.gate_up), getattr(module, layout.down)
    if not layout.inputs_first:
        gate_up, down = gate_up.transpose(1, 2), down.transpose(1, 2)
    k = expert_ids.shape[-1]
    y = ops.moe_layer(
        x.reshape(-1, x.shape[-1]),
        expert_ids.reshape(-1, k),
        None if expert_weights is None else expert_weights.reshape(-1, k),
        gate_up,
        down,
        group,
        gate_up_bias=None if layout.gate_up_bias is None else getattr(module, layout.gate_up_bias),
        down_bias=None if layout.down_bias is None else getattr(module, layout.down_bias),
        **activation._asdict(),
        **options,
    )
    return y if x.dim() == 2 else y.view(x.shape)


def shard_experts(
    module: nn.Module,
    group: Group,
    *,
    name: str = "experts",
    dispatcher: str = "mc2",
    sentinel: bool = False,
    recompute: bool = False,
) -> nn.Module:
    """Shards one module of experts over the ranks of a group and puts Plait's forward in place of its own.

    Every rank calls it with the same, whole module. Its parameters are replaced by this rank's part, with the same names; optimizers are
    made afterwards.

    Args:
        module: with packed weights gate_up_proj (E,2I,H) and down_proj (E,H,I), or transposed as in gpt-oss, and its biases, as the experts
            modules of transformers; or a list of MLPs with gate_proj, up_proj, down_proj (or w1, w3, w2) whose class has a forward. That
            forward takes (hidden_states (T,H), top_k_index (T,k), top_k_weights (T,k)).
        group: of the expert-parallel ranks.
        name: of the module, for messages.
        dispatcher, sentinel, recompute: as for `plait.ops.moe_layer`.

    Returns:
        The module to use in its place: itself, or for a list a `plait.nn.Experts`.

    Raises:
        plait.InvalidArgument: no module of experts, an activation that Plait does not have, experts that the ranks do not divide, or
            experts that are sharded already.
    """
    prepared = prepare(name, module, group)
    return prepared.shard(group, {"dispatcher": dispatcher, "sentinel": sentinel, "recompute": recompute})


def prepare(name: str, module: nn.Module, group: Group) -> "PreparedExperts | PreparedList":
    """All checks of `shard_experts`; nothing is changed."""
    if shards_of(module) is not None:
        raise InvalidArgument(f"{name}: its experts are sharded already")
    if isinstance(module, nn.ModuleList):
        return PreparedList.of(name, module, group)
    layout = layout_of(name, module)
    check_divisible(name, getattr(module, layout.gate_up).shape[0], group)
    return PreparedExperts(name, module, layout, activation_of(name, module, layout))


@dataclass(frozen=True)
class PreparedExperts:
    """A module of whose experts all is known that sharding needs; nothing is changed yet."""

    name: str
    module: nn.Module
    layout: ExpertLayout
    activation: Activation

    def shard(self, group: Group, options: dict[str, Any]) -> nn.Module:
        slice_experts(self.name, self.module, group, self.layout)
        layout, activation = self.layout, self.activation

        def forward(module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor | None = None) -> Tensor:
            return packed_experts_forward(module, hidden_states, top_k_index, top_k_weights, group, layout, activation, **options)

        self.module.forward = types.MethodType(forward, self.module)  # type: ignore[method-assign]
        return self.module


@dataclass(frozen=True)
class PreparedList:
    """The same of a list of MLPs, one for each expert. They become one `plait.nn.Experts`."""

    name: str
    mlps: nn.ModuleList
    layout: ExpertLayout  #: of the plait.nn.Experts
    activation: Activation

    @classmethod
    def of(cls, name: str, mlps: nn.ModuleList, group: Group) -> "PreparedList":
        if type(mlps).forward is nn.Module.forward:
            raise InvalidArgument(
                f"{name}: a plain list, whose experts the module around it calls one by one; ranks cannot share such a loop. Give the list "
                "a class with forward(hidden_states, top_k_index, top_k_weights)"
            )
        check_divisible(name, len(mlps), group)
        projections, gated = _projections_of(name, mlps)
        bias = getattr(mlps[0], projections[2]).bias is not None
        layout = ExpertLayout(
            "gate_up", "down", "gate_up_bias" if bias else None, "down_bias" if bias else None, True, False, gated, projections
        )
        return cls(name, mlps, layout, activation_of(name, mlps[0], layout))

    @torch.no_grad()
    def shard(self, group: Group, options: dict[str, Any]) -> nn.Module:
        from plait.nn import Experts  # which is one of those that are sharded

        shards = ExpertShards(group, len(self.mlps), self.layout, listed=True)
        parameters = {}
        for parameter in self.layout.parameters():
            own = [self._part(mlp, parameter) for mlp in list(self.mlps)[shards.own]]
            wanted = any(p.requires_grad for p in self.mlps.parameters())
            parameters[parameter] = nn.Parameter(torch.stack(own), requires_grad=wanted)
        experts = Experts.of_parameters(shards, parameters, activation=self.activation, **options)
        return experts.train(self.mlps.training)

    def _part(self, mlp: nn.Module, parameter: str) -> Tensor:
        return self.layout.pack([mlp.get_parameter(source) for source in self.layout.sources(parameter)])


def _projections_of(name: str, mlps: nn.ModuleList) -> tuple[tuple[str, str, str], bool]:
    """What the MLPs call their projections, and whether they have a gate."""
    shapes = [{key: tuple(value.shape) for key, value in mlp.named_parameters()} for mlp in mlps]
    for other, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise InvalidArgument(f"{name}: expert {other} has parameters {shape}, expert 0 has {shapes[0]}; all are alike")
    for projections in PROJECTION_NAMES:
        gate, up, down = (f"{projection}.weight" for projection in projections)
        if up in shapes[0] and down in shapes[0]:
            return projections, gate in shapes[0]
    raise InvalidArgument(f"{name}: its experts have parameters {', '.join(shapes[0])}; they are MLPs with gate_proj, up_proj and down_proj")
