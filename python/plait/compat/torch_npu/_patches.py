"""Functions of PyTorch that do more while the stand-in is installed."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from plait.compat.torch_npu._undo import Undo


def add_patches(undo: Undo) -> None:
    undo.set_attribute(torch, "histc", _count_integers(torch.histc))
    undo.set_attribute(torch.Tensor, "histc", _count_integers(torch.Tensor.histc))
    undo.set_attribute(torch.amp.autocast_mode.autocast, "__init__", _autocast_on_cpu(torch.amp.autocast_mode.autocast.__init__))


def _count_integers(histc: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch.histc also for integers, which PyTorch has on accelerators only: counts of the input's type, `max` in the last bin."""

    @functools.wraps(histc)
    def count(input: Tensor, bins: int = 100, min: float = 0, max: float = 0, **named: Any) -> Tensor:
        if input.is_floating_point() or input.is_complex():
            return histc(input, bins, min, max, **named)
        low, high = (min, max) if min != max or input.numel() == 0 else (int(input.min()), int(input.max()))
        if low == high:
            low, high = low - 1, high + 1
        values = input.reshape(-1).double()
        values = values[(values >= low) & (values <= high)]
        places = ((values - low) * (bins / (high - low))).long().clamp_(max=bins - 1)
        counts = torch.bincount(places, minlength=bins).to(input.dtype)
        return named["out"].copy_(counts) if named.get("out") is not None else counts

    return count


def _autocast_on_cpu(init: Callable[..., None]) -> Callable[..., None]:
    """torch.autocast("npu") is that of the CPU, where the tensors are."""

    @functools.wraps(init)
    def start(self: Any, device_type: str, *arguments: Any, **named: Any) -> None:
        init(self, "cpu" if device_type == "npu" else device_type, *arguments, **named)

    return start
