"""The experts implementation "plait"."""

from typing import Any

import torch
from torch import Tensor

from plait import ops
from plait.hf._fusable import known_activation, layout_of_experts
from plait.parallel._layout import ExpertLayout
from plait.parallel._sharding import packed_experts_forward


def experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The forward of an experts module of transformers, on all the experts that the module holds.

    One call of `plait.ops.moe_layer` where the module's gate is one that Plait knows; else two grouped products with the module's own
    `_apply_gate` between them. Weights are used as they lie in memory.

    Args:
        self: a module made with transformers' `use_experts_implementation`.
        hidden_states: (T,H); T may be 0.
        top_k_index: (T,k). Ids of num_experts and above contribute nothing, and give no gradient.
        top_k_weights: (T,k), of any floating type.

    Returns:
        (T,H), of hidden_states' type.

    Raises:
        plait.InvalidArgument: a negative id; a type of weights that is not float32, bfloat16 or float16.

    Example:
        >>> import plait.hf  # doctest: +SKIP
        >>> model.set_experts_implementation("plait")  # doctest: +SKIP
    """
    layout, activation = layout_of_experts(self), known_activation(self)
    x = hidden_states.to(getattr(self, layout.down).dtype)
    if activation is None:
        y = _call_gate_between(self, x, top_k_index, top_k_weights, layout)
    else:
        y = packed_experts_forward(self, x, top_k_index, top_k_weights, None, layout, activation, sentinel=True)
    return y.to(hidden_states.dtype)


def _call_gate_between(self: Any, x: Tensor, ids: Tensor, weights: Tensor, layout: ExpertLayout) -> Tensor:
    """Ids beyond the experts sort behind all rows that are multiplied: their rows are 0, and their weights do not count."""
    gate_up, down = getattr(self, layout.gate_up), getattr(self, layout.down)
    if not layout.inputs_first:
        gate_up, down = gate_up.transpose(1, 2), down.transpose(1, 2)
    num_experts = gate_up.shape[0]
    ids = ids.clamp(max=num_experts)
    absent = ids == num_experts
    entries = ids.flatten().long()
    counts = entries.new_zeros(num_experts + 1).scatter_add(0, entries, torch.ones_like(entries))[:num_experts]
    rows, position = ops.permute(x, ids, num_experts=num_experts + 1)
    h = ops.grouped_matmul(rows, gate_up, counts, bias=getattr(self, layout.gate_up_bias) if layout.gate_up_bias else None)
    act = self._apply_gate(h) if self.has_gate else self.act_fn(h)
    out = ops.grouped_matmul(act.to(down.dtype), down, counts, bias=getattr(self, layout.down_bias) if layout.down_bias else None)
    if getattr(self, "has_post_expert_norm", False):
        out = self.post_expert_norm(out)
    return ops.unpermute(out, position, weights.float().masked_fill(absent, 0.0))
