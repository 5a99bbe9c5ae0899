"""The stand-in modules: torch_npu, torch_npu.npu (which is torch.npu) and torch_npu.npu.amp."""

import importlib.machinery
import sys
import types
from typing import Any, NoReturn

import torch

from plait.compat.torch_npu import _library, _npu
from plait.compat.torch_npu._operator import unavailable
from plait.compat.torch_npu._undo import Undo

# Imported by name where torch_npu is there, and used with its devices only.
_IMPORTABLE = ("npu_fusion_attention",)


def _new_module(name: str, text: str, is_package: bool = True) -> types.ModuleType:
    module = types.ModuleType(name, text)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=is_package)
    if is_package:
        module.__path__ = []
    return module


def make_npu() -> types.ModuleType:
    """torch.npu."""
    module = _new_module("torch_npu.npu", "torch.npu of plait's stand-in: the CPU as a device.")
    for name, value in vars(_npu).items():
        own = getattr(value, "__module__", None) == _npu.__name__ or name in _npu.__all__
        if own and (not name.startswith("_") or name == "_is_in_bad_fork") and name != "autocast":
            setattr(module, name, value)
    # Switches that code sets at import. They are kept, and nothing else.
    for name in ("config", "matmul", "conv"):
        setattr(module, name, types.SimpleNamespace())
    _npu.set_device(0)
    amp = _new_module("torch_npu.npu.amp", "Automatic mixed precision of the CPU.", is_package=False)
    amp.autocast = _npu.autocast  # type: ignore[attr-defined]
    amp.GradScaler = lambda *arguments, **named: torch.amp.GradScaler("cpu", *arguments, **named)  # type: ignore[attr-defined]
    module.amp = amp  # type: ignore[attr-defined]
    return module


def make_torch_npu(npu: types.ModuleType) -> types.ModuleType:
    module = _new_module("torch_npu", "plait's stand-in for torch_npu: its MoE operators on CPU ranks. Not the real package.")
    module.__version__ = f"{torch.__version__.split('+')[0]}+plait"  # type: ignore[attr-defined]
    module.npu = npu  # type: ignore[attr-defined]
    for name in _library.NAMES:
        setattr(module, name, getattr(torch.ops.npu, name))
    for name in _IMPORTABLE:
        setattr(module, name, _absent(name))
    module.__all__ = [name for name in (*_library.NAMES, *_IMPORTABLE) if not name.startswith("_")]  # type: ignore[attr-defined]
    return module


def _absent(name: str) -> Any:
    def function(*arguments: Any, **named: Any) -> NoReturn:
        raise unavailable(name, "this operator")

    return function


def add_modules(undo: Undo, *modules: types.ModuleType) -> None:
    for module in modules:
        undo.set_item(sys.modules, module.__name__, module)
