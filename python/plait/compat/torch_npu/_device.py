"""The device "npu": PyTorch's private backend by that name, whose memory is the CPU's.

Whatever is asked for on "npu" is a CPU tensor: the backend's factories are kernels of ours that make one. What cannot be taken back is
done once in a process: the name, and the hooks and the device guard, without which PyTorch refuses the name.
"""

import sys
import types
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import DefaultDeviceType

from plait._errors import Error
from plait.compat.torch_npu._undo import Undo

_CPU = torch.device("cpu")


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    available = False

    def is_available(self) -> bool:
        return self.available

    def has_primary_context(self, dev_id: int) -> bool:
        return self.available

    def is_built(self) -> bool:
        return True


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


class _Once:
    """What stays in the process after the first call of `start`."""

    def __init__(self) -> None:
        self.hooks = _Hooks()
        self._guard = _Guard()
        self._started = False
        self._repairs: Undo | None = None

    def start(self) -> None:
        """Names the private backend.

        Raises:
            plait.Error: it has another name already.
        """
        if self._repairs is not None:
            self._repairs.close()
            self._repairs = None
        if self._started:
            return
        name = torch._C._get_privateuse1_backend_name()
        if name != "privateuseone":
            raise Error(f"torch_npu.install: PyTorch's private backend is '{name}' in this process; it cannot become 'npu' any more", "unavailable")
        self._accelerator, self._default = torch._C._accelerator_getAccelerator(), torch._C._get_accelerator()
        # The first backward starts a thread for every device known by then, and a process with such threads cannot run backward in forked
        # children. There is nothing to do for a thread of this device, so the first backward comes before it is known.
        torch.zeros((), requires_grad=True).backward()
        torch.utils.rename_privateuse1_backend("npu")
        torch._C._acc.register_python_privateuseone_hook(self.hooks)
        torch._C._acc.register_python_privateuseone_device_guard(self._guard)
        self._started = True

    def repair(self) -> None:
        """PyTorch takes a named private backend for the machine's accelerator for good; without the stand-in it is to see none again."""
        if not self._started or self._repairs is not None:
            return
        self._repairs = Undo()
        self._repairs.set_attribute(torch._C, "_accelerator_getAccelerator", lambda: self._accelerator)
        self._repairs.set_attribute(torch._C, "_get_accelerator", lambda: self._default)


once = _Once()


def _empty(
    size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None, memory_format: Any = None
) -> Tensor:
    strided, contiguous = torch.strided, torch.contiguous_format
    return torch.empty(size, dtype=dtype, layout=layout or strided, device=_CPU, memory_format=memory_format or contiguous)


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, layout=layout or torch.strided, device=_CPU)


def _triangle(make: Any) -> Any:
    def indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, **others: Any) -> Tensor:
        result: Tensor = make(row, col, offset, dtype=dtype or torch.long, device=_CPU)
        return result

    return indices


def _pin_memory(self: Tensor, device: Any = None) -> Tensor:
    """All memory is plain memory, and a copy is what pinning would return."""
    return self.clone()


def _record_stream(self: Tensor, stream: Any) -> None:
    """Nothing runs later than it was called."""


def _as_cpu(self: Any, *arguments: Any, **named: Any) -> Any:
    """Storage.npu."""
    return self


def add_device(undo: Undo, module: types.ModuleType) -> None:
    """From here on "npu" is a device, with `module` as torch.npu."""
    once.start()
    undo.callback(once.repair)
    undo.set_attribute(_Hooks, "available", True)
    torch._register_device_module("npu", module)
    undo.added_attribute(torch, "npu")
    undo.callback(_forget_module, "torch.npu")
    torch.utils.generate_methods_for_privateuse1_backend()
    for owner in (torch.Tensor, torch.nn.Module, torch.nn.utils.rnn.PackedSequence):
        for name in ("npu", "is_npu"):
            undo.added_attribute(owner, name)
    for storage in (torch.UntypedStorage, torch.TypedStorage):
        undo.set_attribute(storage, "npu", _as_cpu)
    _add_kernels(undo)
    _add_loading(undo)
    undo.set_attribute(torch.accelerator, "synchronize", lambda device=None, /: None)
    # Recomputation keeps the accelerator that it has found, "npu" from here on, and must not keep it afterwards.
    undo.set_attribute(DefaultDeviceType, "_default_device_type", None)


def _forget_module(name: str) -> None:
    sys.modules.pop(name, None)


def _add_kernels(undo: Undo) -> None:
    library = torch.library.Library("aten", "IMPL")
    undo.callback(library._destroy)
    library.impl("empty.memory_format", _empty, "PrivateUse1")
    library.impl("empty_strided", _empty_strided, "PrivateUse1")
    library.impl("tril_indices", _triangle(torch.tril_indices), "PrivateUse1")
    library.impl("triu_indices", _triangle(torch.triu_indices), "PrivateUse1")
    library.impl("_pin_memory", _pin_memory, "CPU")
    library.impl("record_stream", _record_stream, "CPU")


def _add_loading(undo: Undo) -> None:
    """torch.load(map_location="npu")."""
    registry = torch.serialization._package_registry
    before = list(registry)
    torch.serialization.register_package(5, lambda storage: None, lambda storage, place: storage if place.startswith("npu") else None)
    (entry,) = (item for item in registry if item not in before)
    undo.callback(registry.remove, entry)
