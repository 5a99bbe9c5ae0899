"""What an experts module of transformers computes, told by the flags that its decorator has set."""

from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2CLS
from transformers.integrations import moe

from plait.parallel._activation import Activation
from plait.parallel._layout import ExpertLayout

_GATES: dict[Any, str] = {ACT2CLS["silu"]: "swiglu", ACT2CLS["swish"]: "swiglu", ACT2CLS["gelu_pytorch_tanh"]: "geglu_tanh"}
_ACTIVATIONS: dict[Any, str] = {ACT2CLS["relu2"]: "relu2"}
# Gates of their own that are (up + 1) * gate * sigmoid(alpha * gate), clamped by `limit`.
_CLAMPED = {
    ("transformers.models.gpt_oss.modeling_gpt_oss", "GptOssExperts._apply_gate"),
    ("transformers.models.openai_privacy_filter.modeling_openai_privacy_filter", "OpenAIPrivacyFilterExperts._apply_gate"),
}


def layout_of_experts(experts: Any) -> ExpertLayout:
    """Where the module has its weights. They are read anew for each call: they may be local views of distributed weights, sums with
    adapters, or have been changed in place."""
    first = "gate_up_proj" if experts.has_gate else "up_proj"
    return ExpertLayout(
        gate_up=first,
        down="down_proj",
        gate_up_bias=f"{first}_bias" if experts.has_bias else None,
        down_bias="down_proj_bias" if experts.has_bias else None,
        inputs_first=experts.is_transposed,
        interleaved=experts.has_gate and not experts.is_concatenated,
        gated=experts.has_gate,
    )


def known_activation(experts: Any) -> Activation | None:
    """What stands between the two products; None where the module's own Python code has to be called there, or after them."""
    if getattr(experts, "has_post_expert_norm", False):
        return None
    if not experts.has_gate:
        return _known(_ACTIVATIONS, experts.act_fn)
    gate = experts.__dict__.get("_apply_gate", type(experts)._apply_gate)
    if gate is moe._default_apply_gate:
        return _known(_GATES, experts.act_fn)
    if (getattr(gate, "__module__", ""), getattr(gate, "__qualname__", "")) in _CLAMPED:
        return Activation("swiglu_clamped", not experts.is_concatenated, float(experts.limit), float(experts.alpha))
    return None


def _known(kinds: dict[Any, str], act_fn: Any) -> Activation | None:
    kind = kinds.get(nn.SiLU if act_fn is torch.nn.functional.silu else type(act_fn))
    return None if kind is None else Activation(kind)
