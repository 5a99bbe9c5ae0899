"""How a module packs the matrices of its experts, and what a checkpoint with one entry per expert calls them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from plait._errors import InvalidArgument
from plait._group import Group

# The names of an expert's gate, up and down projection: of most models, and of Mixtral.
PROJECTION_NAMES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))


class ExpertLayout(NamedTuple):
    """Packed parameters, one expert after the other in dimension 0. Names are those of the module's parameters."""

    gate_up: str
    down: str
    gate_up_bias: str | None = None  #: (E,2I)
    down_bias: str | None = None  #: (E,H)
    inputs_first: bool = False  #: gate_up (E,H,2I) and down (E,I,H), as in gpt-oss; otherwise (E,2I,H) and (E,H,I)
    interleaved: bool = False  #: columns are gate, up, gate, up, ... instead of [gate | up]
    gated: bool = True  #: False: gate_up is the up projection alone
    projections: tuple[str, str, str] = PROJECTION_NAMES[0]  #: what a checkpoint calls an expert's gate, up and down

    def parameters(self) -> Iterator[str]:
        """The names of those that exist."""
        for name in (self.gate_up, self.gate_up_bias, self.down, self.down_bias):
            if name is not None:
                yield name

    def sources(self, parameter: str, projections: tuple[str, str, str] | None = None) -> list[str]:
        """What one expert's part of `parameter` is called in a checkpoint, behind the expert's number: its down matrix, or gate and up."""
        gate, up, down = projections or self.projections
        kind = "bias" if parameter in (self.gate_up_bias, self.down_bias) else "weight"
        if parameter in (self.down, self.down_bias):
            return [f"{down}.{kind}"]
        return [f"{gate}.{kind}", f"{up}.{kind}"] if self.gated else [f"{up}.{kind}"]

    def pack(self, parts: list[Tensor]) -> Tensor:
        """One expert's part of a parameter from what its `sources` hold: (N,K) matrices or (N) biases, outputs first."""
        whole = parts[0]
        if len(parts) == 2:
            whole = torch.stack(parts, 1).flatten(0, 1) if self.interleaved else torch.cat(parts)
        return whole.t() if self.inputs_first and whole.dim() == 2 else whole

    def unpack(self, whole: Tensor, count: int) -> list[Tensor]:
        """The inverse of `pack`, for `count` sources."""
        if self.inputs_first and whole.dim() == 2:
            whole = whole.t()
        if count == 1:
            return [whole.contiguous()]
        halves = (whole[0::2], whole[1::2]) if self.interleaved else whole.chunk(2)
        return [half.contiguous() for half in halves]


@dataclass(frozen=True)
class ExpertShards:
    """What a module of sharded experts says of itself, in its attribute plait_shards."""

    group: Group
    num_experts: int  #: E, of all ranks
    layout: ExpertLayout
    listed: bool = False  #: they were a list: whole weights have an entry for each expert

    @property
    def own(self) -> slice:
        """This rank's experts."""
        local = self.num_experts // self.group.size
        return slice(self.group.rank * local, (self.group.rank + 1) * local)


def layout_of(name: str, module: nn.Module) -> ExpertLayout:
    """The layout of a module with packed weights, as the experts of transformers: gate_up_proj, or up_proj alone, and down_proj.

    Raises:
        plait.InvalidArgument: it has no such weights, or their shapes do not fit together; names the module.
    """
    own = dict(module.named_parameters(recurse=False))
    gated = "gate_up_proj" in own
    first, down = own.get("gate_up_proj" if gated else "up_proj"), own.get("down_proj")
    if first is None or down is None or first.dim() != 3 or down.dim() != 3:
        raise InvalidArgument(
            f"{name} ({type(module).__name__}) is no module of experts: it needs packed weights gate_up_proj and down_proj of three "
            f"dimensions, or to be a list of MLPs with gate_proj, up_proj and down_proj; its parameters: {', '.join(own) or 'none'}"
        )
    width = 2 if gated else 1
    outputs_first = first.shape[1] == width * down.shape[2] and first.shape[2] == down.shape[1]
    inputs_first = first.shape[2] == width * down.shape[1] and first.shape[1] == down.shape[2]
    if first.shape[0] != down.shape[0] or not (inputs_first or outputs_first):
        raise InvalidArgument(
            f"{name}: shapes {tuple(first.shape)} and {tuple(down.shape)} do not fit together: (E,{width}I,H) and (E,H,I), or "
            f"(E,H,{width}I) and (E,I,H)"
        )
    prefix = "gate_up_proj" if gated else "up_proj"
    return ExpertLayout(
        gate_up=prefix,
        down="down_proj",
        gate_up_bias=f"{prefix}_bias" if f"{prefix}_bias" in own else None,
        down_bias="down_proj_bias" if "down_proj_bias" in own else None,
        # Without a gate square shapes fit both ways: the module has to say it.
        inputs_first=bool(getattr(module, "is_transposed", False)) if inputs_first and outputs_first else inputs_first,
        interleaved=gated and not getattr(module, "is_concatenated", True),
        gated=gated,
    )
