"""Which of Plait's activations stands between the two products of a foreign module of experts."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from plait import ops
from plait._errors import InvalidArgument
from plait.parallel._layout import ExpertLayout


class Activation(NamedTuple):
    """The arguments of `plait.ops.moe_layer` of the same names."""

    activation: str
    interleaved: bool = False
    limit: float = 7.0
    alpha: float = 1.702

    def compute(self, h: Tensor) -> Tensor:
        """(M,2I), or (M,I) without a gate -> (M,I)."""
        if self.activation == "relu2":
            return ops.relu2(h)
        if self.activation == "swiglu_clamped":
            return ops.swiglu_clamped(h, interleaved=self.interleaved, limit=self.limit, alpha=self.alpha)
        return {"swiglu": ops.swiglu, "geglu_tanh": ops.geglu_tanh}[self.activation](h, interleaved=self.interleaved)


def activation_of(name: str, module: nn.Module, layout: ExpertLayout) -> Activation:
    """What the module computes, told by its values on a few numbers rather than by its name.

    A module says it by `_apply_gate(h)`, as those of transformers do, or by `act_fn`.

    Raises:
        plait.InvalidArgument: it says nothing, or is none of Plait's; names the module.
    """
    candidates = [Activation("swiglu", layout.interleaved), Activation("geglu_tanh", layout.interleaved)]
    if hasattr(module, "limit") and hasattr(module, "alpha"):
        candidates.append(Activation("swiglu_clamped", layout.interleaved, float(module.limit), float(module.alpha)))  # type: ignore[arg-type]
    if not layout.gated:
        candidates = [Activation("relu2")]
    gate = _gate_of(module, layout)
    if gate is None:
        raise InvalidArgument(f"{name} ({type(module).__name__}) has neither act_fn nor _apply_gate: say the activation")
    sample = torch.linspace(-9, 9, 64).view(4, 16)
    with torch.no_grad():
        wanted = gate(sample)
        for candidate in candidates:
            if torch.allclose(candidate.compute(sample), wanted, rtol=1e-5, atol=1e-5):
                return candidate
    known = ", ".join(candidate.activation for candidate in candidates)
    raise InvalidArgument(f"{name} ({type(module).__name__}): its activation is none of {known}")


def _gate_of(module: Any, layout: ExpertLayout) -> Callable[[Tensor], Tensor] | None:
    if layout.gated and callable(getattr(module, "_apply_gate", None)):
        return module._apply_gate
    act_fn = getattr(module, "act_fn", None)
    if act_fn is None or not layout.gated:
        return act_fn

    def gate(h: Tensor) -> Tensor:
        first, up = (h[:, 0::2], h[:, 1::2]) if layout.interleaved else h.chunk(2, -1)
        return act_fn(first) * up

    return gate
